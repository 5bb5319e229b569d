"""stage=evaluate of a running server: what it serves, by its own counters."""
