import json
from pathlib import Path

from data_specs import draft

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_reference_drafts_have_the_required_fields() -> None:
    for folder in ("qwen3_dspark_vanilla", "qwen3_dspark_decode/draft"):
        config = json.loads((GOLDEN / folder / draft.CONFIG).read_text())
        assert not [name for name in draft.REQUIRED if config.get(name) is None]
        assert (GOLDEN / folder / draft.WEIGHTS).is_file()


def test_absent_fields_mean_what_engines_take_them_to_mean() -> None:
    assert draft.DEFAULTS["enable_confidence_head"] is False
    assert draft.DEFAULTS["sample_from_anchor"] is True
