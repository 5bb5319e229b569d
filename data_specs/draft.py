"""The draft artifact: a folder in the native layout, which engines load and others' drafts come in.

    config.json          the target's text config with the draft's own fields (below)
    model.safetensors    the best draft by held-out accepted length; no ``model.`` prefix; embedding and head frozen
    last/                the same two files for the draft after the last step
    metrics.jsonl        the record of the run: one JSON object a line, kind ``train`` or ``heldout``
    training.png         loss and accepted length over the steps
    manifest.json        see manifest.py

Slot k of a block at anchor a sits at position a+k and predicts token a+k+1 (anchor-first,
``sample_from_anchor: true``). ``target_layer_ids`` L means the output of decoder layer L, -1 the
embedding's; the fc reads the taps in that order.
"""

CONFIG, WEIGHTS, LAST, METRICS = "config.json", "model.safetensors", "last", "metrics.jsonl"

# What config.json may leave out, and what engines then take it to be.
DEFAULTS = {
    "markov_rank": 0,
    "markov_head_type": "vanilla",
    "enable_confidence_head": False,
    "confidence_head_with_markov": False,
    "sample_from_anchor": True,
}
REQUIRED = ("architectures", "block_size", "mask_token_id", "target_layer_ids", "hidden_size", "vocab_size")
# Written into every config, because a reader that takes the other convention accepts 1-2 tokens instead of 4-6.
CONVENTION = {"sample_from_anchor": True, "dspark_bonus_anchor": False}
