"""The artifact store: versioned folders, work that processes share, what a run tells its tracker."""
