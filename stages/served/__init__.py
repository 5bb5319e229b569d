"""stage=evaluate of a running server: the acceptance of its drafts, from its own counters."""
