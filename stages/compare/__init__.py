"""Stage compare: evaluations of several drafters -> tables and figures side by side."""
