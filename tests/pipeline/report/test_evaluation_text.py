"""What the report says: table, footnotes, Markdown, plots, on a wide and on a narrow screen."""

import json

import pytest

from data_specs.evaluation import ROUNDS, write_rounds
from pipeline import console
from pipeline.report.evaluation_text import (
    LENGTH_PLOT,
    MARKDOWN,
    POSITIONS_PLOT,
    SUMMARY,
    EvaluationFacts,
    flat_metrics,
    show,
    table_rows,
    write_report,
)
from pipeline.store.artifacts import Store


def rows(benchmark, prompt, accepted, plain=True):
    """One answer: a token and a round of 3 drafts for each of ``accepted``; and its plain counterpart."""
    common = {
        "benchmark": benchmark,
        "prompt": prompt,
        "key": "k",
        "turn": 0,
        "confidences": None,
        "finish": None,
    }
    tokens = [7] * (1 + sum(a + 1 for a in accepted))
    drafted = [
        common | {
            "mode": "draft", "round": n, "context": 20 + n, "drafted": 3 * (n > 0), "proposed": 3 * (n > 0),
            "accepted": a, "emitted": a + 1, "tokens": [7] * (a + 1), "draft_seconds": 0.01 * (n > 0),
            "verify_seconds": 0.04, "finish": "stop" if n == len(accepted) else None,
        }
        for n, a in enumerate([0, *accepted])
    ]  # fmt: skip
    alone = [
        common | {
            "mode": "plain", "round": n, "context": 20 + n, "drafted": 0, "proposed": 0, "accepted": 0,
            "emitted": 1, "tokens": [7], "draft_seconds": 0.0, "verify_seconds": 0.04,
        }
        for n in range(len(tokens) * plain)
    ]  # fmt: skip
    return drafted + alone


def facts(**changes):
    values = {
        "draft": "d", "target": "t", "sampler": {"temperature": 0.0}, "threshold": 0.0, "max_new_tokens": 64,
        "thinking": None, "device": "cpu", "dtype": "float32", "prompts": {"zeta": 2, "alpha": 1},
    }  # fmt: skip
    return EvaluationFacts(**(values | changes))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "alpha-00000.parquet", rows("alpha", 0, [3, 3]))
    write_rounds(tmp_path / ROUNDS / "zeta-00000.parquet", rows("zeta", 0, [1, 2]) + rows("zeta", 1, [3, 0]))
    return tmp_path


def test_the_table_is_in_the_order_asked_for(folder):
    result = write_report(folder, facts(), positions=3, resamples=100)
    zeta, alpha, macro = table_rows(result)
    # zeta: accepted 1, 2, 3, 0: 10 tokens in 4 rounds. Each prompt's mean is 2.5, so the interval is a point.
    assert zeta[:5] == ("zeta", "2", "2.50 [2.50, 2.50]", "50 %", ".75 .50 .25")
    assert alpha[:5] == ("alpha", "1", "4.00", "100 %", "1.00 1.00 1.00")  # one prompt: no interval
    assert macro[:5] == ("macro average", "3", "3.25 [3.25, 3.25]", "75 %", ".88 .75 .62")
    # alpha: 9 tokens in 3 * 0.04 + 2 * 0.01 s; plain 25 tokens/s.
    assert alpha[5:] == ("64.3", "25.0", "2.57")


def test_files(folder):
    result = write_report(folder, facts(), positions=3, resamples=20)
    assert json.loads((folder / SUMMARY).read_text()) == result
    text = (folder / MARKDOWN).read_text()
    assert "| zeta | 2 | 2.50 [2.50, 2.50] | 50 % | .75 .50 .25 |" in text
    assert "| zeta | 0.75 | 0.67 | 0.50 |" in text  # conditional: 3 of 4, 2 of 3, 1 of 2
    assert "| 0 - 511 | 3 | 6 | 3.00 " in text
    assert "answers equal to plain decoding: 100.0%" in text
    for plot in (POSITIONS_PLOT, LENGTH_PLOT):
        assert (folder / plot).read_bytes().startswith(b"\x89PNG")
        assert f"({plot})" in text


def test_the_effective_sampler_is_said(folder):
    """Pitfall 40."""
    sampler = {"temperature": 0.7, "top_p": 0.9, "top_k": None, "min_p": None}
    write_report(folder, facts(sampler=sampler, threshold=0.3, thinking=False), 3, 0)
    text = (folder / MARKDOWN).read_text()
    assert "sampler: temperature 0.7, top_p 0.9; threshold 0.3; at most 64 new tokens; thinking False" in text
    assert "equal to plain" not in text  # draws differ, as they should


def test_without_a_baseline(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "alpha-00000.parquet", rows("alpha", 0, [3, 3], plain=False))
    result = write_report(tmp_path, facts(prompts={"alpha": 1}), 3, 10)
    (alpha,) = table_rows(result)
    assert alpha[5:] == ("64.3", "-", "-")
    assert "alpha/speedup" not in flat_metrics(result)
    assert flat_metrics(result)["alpha/accepted_length"] == 4.0


def test_a_benchmark_without_any_answer(tmp_path):
    """All its prompts were longer than the context."""
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "alpha-00000.parquet", rows("alpha", 0, [3]))
    result = write_report(tmp_path, facts(prompts={"alpha": 2, "zeta": 3}), 3, 10)
    assert table_rows(result)[1] == ("zeta", "0", "-", "-", "-", "-", "-", "-")
    assert "left out: 4" in (tmp_path / MARKDOWN).read_text()


@pytest.mark.parametrize(("width", "tables"), [(140, 1), (80, 2)])
def test_last_screen(folder, tmp_path_factory, capsys, monkeypatch, width, tables):
    store = Store(tmp_path_factory.mktemp("store"))
    work = store.begin("evaluation", "d", 1, "f" * 64, {}, {})
    (work.path / ROUNDS).mkdir()
    write_rounds(work.path / ROUNDS / "zeta-00000.parquet", rows("zeta", 0, [1, 2]) + rows("zeta", 1, [3, 0]))
    write_report(work.path, facts(prompts={"zeta": 2}), 3, 100)
    artifact = store.commit(work, {})
    monkeypatch.setattr(console.console, "width", width)
    show(artifact)
    shown = capsys.readouterr().out
    assert shown.count("d on t") == tables
    for text in (
        "2.50 [2.50, 2.50]",
        "50 %",
        ".75 .50 .25",
        "python -m pipeline stage=list",
        "evaluation  d:v0",
    ):
        assert text in shown
    assert str(artifact.path) in "".join(line.strip("│ ") for line in shown.splitlines())
