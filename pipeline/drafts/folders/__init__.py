"""Drafts on disk: the native layout, the layouts of other projects, and the golden parity with them."""
