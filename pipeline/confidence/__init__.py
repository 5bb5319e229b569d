"""How well a draft's confidences tell what will be accepted, and the temperatures that correct them."""
