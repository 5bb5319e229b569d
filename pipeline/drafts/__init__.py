"""Draft models: what they share, and one file for each algorithm."""
