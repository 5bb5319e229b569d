"""The export artifact: a draft in the layout that one engine loads, or a model folder for the Hub.

    config.json          the draft's own fields, under that reader's names
    model.safetensors    the draft's tensors, bit for bit, under the reader's names
    calibration.json     the draft's calibration, if it has one (``draft`` is the fingerprint of these files)
    provenance.json      its origin: references, fingerprints, versions, target, data, but no path of a machine. An
                         import keeps it, so that an export of the import has it too. ``draft_sampling`` says how its
                         tokens were chosen in its evaluation (target | greedy | null).
    sglang_sts.json      sglang: the calibration's temperatures, for --speculative-dspark-confidence-sts-path
    sglang_sps.json      sglang: the measured steps per second, for --speculative-dspark-sps-table-path
    *.gguf               llama_cpp with ``export.converter``: the draft and its target, converted
    README.md            hub: the model card
    manifest.json        see manifest.py; kind ``export``, parents: the draft (hub: the evaluation on the card)

No engine has a layout for a draft that samples from the anchor but has no sequential head. Such a draft is exported
with a Markov head of zeros, and ``zero_markov_head: true`` (``ZERO_HEAD``) in config.json says so. Import removes this
head. Any other tensor of zeros is an error.
"""

SCHEMA_VERSION = 1
FORMATS = ("vllm", "sglang", "llama_cpp", "mlx", "speculators", "hub")
PROVENANCE, CARD = "provenance.json", "README.md"
DRAFT_GGUF, TARGET_GGUF = "draft.gguf", "target.gguf"
STS, SPS = "sglang_sts.json", "sglang_sps.json"

ZERO_HEAD = "zero_markov_head"  # field of config.json: the Markov head is zero on purpose
ZERO_HEAD_RANK = 64  # the smallest rank that mlx-dspark can quantise
EAGLE3_STEPS = 7  # drafts a block of a foreign Eagle3 that does not say; the paper's training-time-test steps
