"""The frozen target: its files, its forward pass, its KV cache, and the ranks that hold it together."""
