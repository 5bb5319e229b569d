"""Drafts on disk: the native layout, the layouts of other projects, and the comparison with reference figures."""
