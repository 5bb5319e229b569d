"""Prompts: rows of data sets, chat templates, benchmarks, and the split that keeps some of them out of training."""
