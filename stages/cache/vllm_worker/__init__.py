"""What runs in vLLM's own environment, not in draftline's: nothing here is imported by draftline."""
