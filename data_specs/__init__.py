"""What crosses a stage boundary: the formats of draftline's artifacts, one a file. No torch, no Hydra."""
