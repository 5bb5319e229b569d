"""Speculative decoding of one or many prompts, dialogues, and the scheduler that decides how much is verified."""
