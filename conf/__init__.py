"""Hydra's config groups; the schema is pipeline/config/."""
