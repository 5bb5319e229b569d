"""The draft artifact: a folder in the native layout, which engines load and others' drafts come in.

    config.json          the target's text config with the draft's own fields (below)
    model.safetensors    the best draft by held-out accepted length; no ``model.`` prefix; embedding and head frozen
    last/                the same two files for the draft after the last step
    metrics.jsonl        the record of the run: one JSON object a line, kind ``train`` or ``heldout``
    training.png         loss and accepted length over the steps
    manifest.json        see manifest.py

Slot k of a block at anchor a sits at position a+k and predicts token a+k+1 (anchor-first,
``sample_from_anchor: true``) or its own, token a+k (1+N fill-in, ``false``; architecture DFlashDraftModel).
With ``draft_vocab_size`` D below ``vocab_size`` the head has D rows and two tables say which tokens they are:
``d2t`` int64 [D] (target id - draft id) and ``t2d`` bool [V]. ``target_layer_ids`` L means the output of decoder
layer L, -1 the embedding's; the fc reads the taps in that order.
"""

CONFIG, WEIGHTS, LAST, METRICS = "config.json", "model.safetensors", "last", "metrics.jsonl"

# What config.json may leave out, and what engines then take it to be.
DEFAULTS = {
    "model_type": "qwen3",
    "markov_rank": 0,
    "markov_head_type": "vanilla",
    "markov_learned_start": False,
    "enable_confidence_head": False,
    "confidence_head_with_markov": False,
    "sample_from_anchor": True,
}
REQUIRED = ("architectures", "target_layer_ids", "hidden_size", "vocab_size")
BLOCK_FIELDS = ("block_size", "mask_token_id")  # of drafters that draft a block in one pass
# ``sample_from_anchor`` and its opposite ``dspark_bonus_anchor`` (vLLM's word for it) stand in every config that is
# written, because a reader that takes the other convention accepts 1-2 tokens instead of 4-6.
