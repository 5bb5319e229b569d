"""These files run in vLLM's own environment; draftline imports none of them."""
