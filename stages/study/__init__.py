"""stage=study: policies under load, really served and simulated."""
