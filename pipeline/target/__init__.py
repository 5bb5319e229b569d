"""The frozen target: its files and tensors, its forward pass, its KV cache, and the ranks that share it."""
