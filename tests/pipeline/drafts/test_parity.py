"""Parity with the reference implementation's figures (golden/qwen3_dspark_vanilla)."""

from pathlib import Path

import pytest

from pipeline.drafts import parity

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_dspark_vanilla"


@pytest.mark.parametrize("attention", ["dense", "grouped"])
@pytest.mark.parametrize("chunk_slots", [128, 5])
def test_golden(attention: str, chunk_slots: int) -> None:
    report = parity.compare(GOLDEN, attention, chunk_slots)
    assert report.pop("draft_logits") < 1e-4
    assert report.pop("confidence_logits") < 1e-4
    assert report.pop("eval_mask") == 0
    assert report.pop("target_ids") == 0
    assert report.pop("loss_gamma7") < 1e-5
    assert report.pop("loss_gamma4") < 1e-5
    assert len(report) == 29, "every trainable tensor has a gradient"
    assert max(report.values()) < 1e-4, report
