"""A backend of Triton for machines without a GPU: compiler.py and driver.py.

Triton needs a driver even with TRITON_INTERPRET=1, although it compiles nothing then.
"""
