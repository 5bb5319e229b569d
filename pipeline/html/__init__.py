"""The self-contained report: evaluations as dicts -> one HTML page. Pure functions; page.py writes the file."""
