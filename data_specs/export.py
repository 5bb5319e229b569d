"""The export artifact: a draft in the layout that one engine loads, or a model folder for the Hub.

    config.json          the draft's own fields, as that reader names them; nothing of the target that does not hold
    model.safetensors    the draft's tensors under the reader's names, bit for bit those of the draft
    calibration.json     the draft's calibration, where it has one (``draft`` is the fingerprint of these files)
    provenance.json      what it was made from: references, fingerprints, versions, target, data; no path of a machine.
                         An import takes it along, so that an export of the import still knows.
                         draft_sampling: how its tokens were chosen when it was evaluated (target | greedy | null)
    sglang_sts.json      sglang: the calibration's temperatures, for --speculative-dspark-confidence-sts-path
    sglang_sps.json      sglang: the measured steps a second, for --speculative-dspark-sps-table-path
    *.gguf               llama_cpp with ``export.converter``: the draft and its target, converted
    README.md            hub: the model card
    manifest.json        see manifest.py; kind ``export``, parents: the draft (hub: the evaluation on the card)

A draft without a sequential head that samples from the anchor has no layout of its own in any engine: it is exported
with a Markov head of zeros, and ``ZERO_HEAD: true`` in config.json says so. Import takes the head off again; any other
tensor of zeros is an error.
"""

SCHEMA_VERSION = 1
FORMATS = ("vllm", "sglang", "llama_cpp", "mlx", "speculators", "hub")
PROVENANCE, CARD = "provenance.json", "README.md"
DRAFT_GGUF, TARGET_GGUF = "draft.gguf", "target.gguf"
STS, SPS = "sglang_sts.json", "sglang_sps.json"

ZERO_HEAD = "zero_markov_head"  # field of config.json: the Markov head is all zero on purpose
ZERO_HEAD_RANK = 64  # the smallest that mlx-dspark can quantise
EAGLE3_STEPS = 7  # drafts a block of a foreign Eagle3 that does not say: the paper's training-time-test steps
