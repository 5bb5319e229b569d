"""What a comparison says: tables, Markdown, plots, last screen."""

import json

import pytest

from pipeline import console
from pipeline.store.artifacts import Store
from stages.compare.report import MARKDOWN, RESULT, figure_tables, notes, show, write_report


def told(value, spread=0.1):
    return {"value": value, "interval": None if value is None else [value - spread, value + spread]}


@pytest.fixture
def result():
    lengths = {"dspark": told(2.0), "mtp": told(1.5)}
    ratios = {"dspark": told(1.0, 0.0), "mtp": told(0.75, 0.05)}
    row = {"prompts": 4, "accepted_length": lengths, "ratio": ratios}
    speed = {
        "acceptance_rate": told(0.3), "drafted_length": told(7.0), "draft_ms": told(4.0), "verify_ms": told(40.0),
        "tokens_per_second": told(20.0), "speedup": told(1.5),
    }  # fmt: skip
    variants = {
        name: {
            "overrides": [f"drafter={name}"], "draft": f"t_{name}:v0", "evaluation": f"t_{name}:v1", "steps": 9,
            "trainable": 12_345, "heldout_length": 1.987,
        }
        for name in ("dspark", "mtp", "dspark_block4")
    }  # fmt: skip
    block = {
        "title": "Fig. 4: accepted length by block size", "key": "drafter.block_size", "values": [4, 8],
        "drafters": ["dspark"], "prompts": 3, "accepted_length": {"dspark": [told(1.8), told(2.0)]},
        "variants": {"dspark": ["dspark_block4", "dspark"]},
        "latency": {"dspark": [
            {"draft_ms": 5.04, "parallel_ms": 4.0, "share": 0.2},
            {"draft_ms": 8.0, "parallel_ms": 4.0, "share": 0.5},
        ]},
    }  # fmt: skip
    return {
        "facts": {
            "target": "t", "cache": "t_chat:v0", "steps": 9, "global_batch": 4, "anchors": 5, "seed": 0,
            "sampler": {"temperature": 0.0}, "max_new_tokens": 64, "device": "cpu", "dtype": "bfloat16",
        },
        "table": {
            "drafters": ["dspark", "mtp"], "order": ["zeta", "alpha", "macro average"], "prompts": 8,
            "rows": {"alpha": row, "zeta": row, "macro average": row | {"prompts": 8}},
            "conditional": {"dspark": [told(0.9), told(0.8), told(None)], "mtp": [told(0.7)]},
            "speed": {"dspark": speed, "mtp": speed | {"speedup": told(None)}},
            "variants": {"dspark": "dspark", "mtp": "mtp"},
        },
        "figures": {"block": block}, "figure_order": ["block"], "variants": variants,
        "order": ["dspark", "mtp", "dspark_block4"],
    }  # fmt: skip


def test_markdown(result, tmp_path) -> None:
    write_report(tmp_path, result)
    assert json.loads((tmp_path / RESULT).read_text()) == result
    lines = (tmp_path / MARKDOWN).read_text().splitlines()
    for line in (
        "## Drafters on t",
        "| benchmark | prompts | dspark | mtp |",
        "| macro average | 8 | 2.00 [1.90, 2.10] | 1.50 [1.40, 1.60] |",
        "| macro average | 0.75 [0.70, 0.80] |",  # the ratio: not of the first drafter to itself
        "| mtp | 30 % | 7.00 | 4.0 | 40.0 | 20.0 | - |",
        "| dspark | 0.90 | 0.80 | - |",
        "| mtp | 0.70 | - | - |",  # drafts less
        "### Fig. 4: accepted length by block size (macro average of 3 prompts)",
        "| dspark | 1.80 [1.70, 1.90] | 2.00 [1.90, 2.10] |",
        "| dspark | 20 % of 5.0 ms | 50 % of 8.0 ms |",
        "| dspark_block4 | t_dspark_block4:v0 | t_dspark_block4:v1 | 12,345 | 1.99 |",
    ):
        assert line in lines
    assert lines.index("| zeta | 4 | 2.00 [1.90, 2.10] | 1.50 [1.40, 1.60] |") < lines.index(
        "| alpha | 4 | 2.00 [1.90, 2.10] | 1.50 [1.40, 1.60] |"
    )
    for plot in ("comparison_conditional.png", "comparison_block.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
        assert f"({plot})" in (tmp_path / MARKDOWN).read_text()


def test_a_figure_without_latency_is_one_table(result) -> None:
    block = result["figures"]["block"] | {"latency": None}
    (table,) = figure_tables(block)
    assert table[1:] == (
        ("drafter.block_size", "4", "8"), [["dspark", "1.80 [1.70, 1.90]", "2.00 [1.90, 2.10]"]],
    )  # fmt: skip


def test_the_notes_say_what_was_equal(result) -> None:
    text = " ".join(notes(result))
    assert "every variant: 9 steps of 4 sequences with 5 blocks each, seed 0" in text
    assert "sampler: temperature 0.0; at most 64 new tokens; cpu, bfloat16, batch of one" in text


def test_last_screen(result, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(console.console, "width", 140)
    store = Store(tmp_path)
    work = store.begin("comparison", "t_drafters", 1, "f" * 64, {}, {})
    write_report(work.path, result)
    artifact = store.commit(work, {})
    show(artifact)
    shown = capsys.readouterr().out
    for text in (
        "Table 1: accepted length", "0.75 [0.70, 0.80]", "20 % of 5.0", "comparison  t_drafters:v0",
        "python -m pipeline stage=list",
    ):  # fmt: skip
        assert text in shown
    assert str(artifact.path) in "".join(line.strip("│ ") for line in shown.splitlines())
