"""The target cache on disk: written in segments, read at random."""
