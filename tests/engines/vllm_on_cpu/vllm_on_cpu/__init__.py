"""A backend of Triton for machines without a GPU (its compiler.py and driver.py), and a plugin of vLLM (norms.py).

Triton looks for a driver even with TRITON_INTERPRET=1, where it compiles nothing.
"""
