"""The draft's decoder layers: one file per family, which holds only the difference from ``layers``."""
