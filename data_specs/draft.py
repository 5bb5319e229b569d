"""The draft artifact: a folder in the native layout, which engines load and in which others' drafts are imported.

    config.json          the target's text config, with the draft's own fields (below)
    model.safetensors    the draft with the best held-out accepted length, including its frozen embedding and head; its
                         names have no prefix ``model.``
    last/                the same two files for the draft after the last step
    metrics.jsonl        the record of the run: one JSON object per line, of kind ``train`` or ``heldout``
    training.png         loss and accepted length over the steps
    manifest.json        see manifest.py

Slot k of a block at anchor a is at position a+k. It predicts token a+k+1 (anchor-first, ``sample_from_anchor: true``)
or the token of its own position, a+k (1+N fill-in, ``false``; architecture DFlashDraftModel).
If ``draft_vocab_size`` D is below ``vocab_size``, the head has D rows, and two tables map them to tokens: ``d2t`` int64
[D] (target id - draft id) and ``t2d`` bool [V]. In ``target_layer_ids``, L means the output of decoder layer L, and -1
that of the embedding; the fc reads the taps in this order.
"""

CONFIG, WEIGHTS, LAST, METRICS = "config.json", "model.safetensors", "last", "metrics.jsonl"

# Fields that config.json may leave out, and the values that engines then assume.
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
# Every config that we write has ``sample_from_anchor`` and its opposite ``dspark_bonus_anchor`` (vLLM's name): with a
# reader that assumes the other convention, 1-2 tokens are accepted instead of 4-6.
