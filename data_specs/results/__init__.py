"""The results that stages write as JSON: evaluations, studies, comparisons."""
