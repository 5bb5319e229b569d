"""Draft models: the shared backbone and heads, and one file an algorithm."""
