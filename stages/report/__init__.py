"""Stage report: evaluations -> one self-contained page that shows them side by side."""
