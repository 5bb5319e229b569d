"""Decoder layers of the draft, one family a file; a family states only its difference from ``layers``."""
