"""The quality of a draft's confidences, and the temperatures that correct them."""
