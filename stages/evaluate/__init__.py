"""Stage evaluate: speculative decoding of a draft on benchmarks -> rounds and their report."""
