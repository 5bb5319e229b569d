"""Speculative decoding: one prompt, many at a time, dialogues, and the scheduler that decides what is verified."""
