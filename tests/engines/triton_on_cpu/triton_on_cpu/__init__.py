"""A backend of Triton for machines without a GPU: compiler.py and driver.py.

Triton looks for a driver even with TRITON_INTERPRET=1, where it compiles nothing.
"""
