"""``stage=export`` and ``stage=import``: drafts in the layouts that engines load, one file a format."""
