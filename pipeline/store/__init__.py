"""The artifact store: versioned folders, work that processes share, and the tracking of runs."""
