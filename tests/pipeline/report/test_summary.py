"""What is summarised of the rounds, and how the three writers of text say it."""

import numpy as np
import pyarrow as pa
import pytest
import tiny_summary

from data_specs.evaluation import ROUNDS, SCHEMA, read_rounds, write_rounds
from data_specs.results.summary import EvaluationFacts
from pipeline import console
from pipeline.report.evaluation import Evaluation
from pipeline.report.markdown import write_markdown
from pipeline.report.page import evaluation_sections
from pipeline.report.screen import show
from pipeline.report.summary import flat_metrics, summarise


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


def sections(folder, known, resamples=20):
    result = summarise(read_rounds(folder), known, 3, resamples)
    return evaluation_sections(Evaluation("d:v0", result, "2026-11-30"))


def written(folder, known):
    write_markdown(folder / "summary.md", "d on t", sections(folder, known))
    return (folder / "summary.md").read_text()


def main_table(folder, known, resamples=100):
    table = sections(folder, known, resamples)[0].shown("screen")[0]
    return [tuple(cell.plain for cell in row) for row in table.rows]


def test_the_table_is_in_the_order_asked_for(folder):
    zeta, alpha, macro = main_table(folder, facts())
    # zeta: accepted 1, 2, 3, 0: 10 tokens in 4 rounds. Each prompt's mean is 2.5, so the interval is a point.
    assert zeta[:5] == ("zeta", "2", "2.50 [2.50, 2.50]", "50 %", ".75 .50 .25")
    assert alpha[:5] == ("alpha", "1", "4.00", "100 %", "1.00 1.00 1.00")  # one prompt: no interval
    assert macro[:5] == ("macro average", "3", "3.25 [3.25, 3.25]", "75 %", ".88 .75 .62")
    # alpha: 9 tokens in 3 * 0.04 + 2 * 0.01 s; plain 25 tokens/s.
    assert alpha[5:] == ("64.3", "25.0", "2.57")


def test_files(folder):
    text = written(folder, facts())
    assert "| zeta | 2 | 2.50 [2.50, 2.50] | 50 % | .75 .50 .25 |" in text
    assert "| zeta | 0.75 | 0.67 | 0.50 |" in text  # conditional: 3 of 4, 2 of 3, 1 of 2
    assert "| 0 to 511 | 3 | 6 | 3.00 " in text
    assert "plain decoding: 100.0 %" in text
    for plot in ("acceptance_by_position.png", "accepted_length.png"):
        assert (folder / plot).read_bytes().startswith(b"\x89PNG")
        assert f"({plot})" in text


def test_without_a_baseline(tmp_path):
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "alpha-00000.parquet", rows("alpha", 0, [3, 3], plain=False))
    known = facts(prompts={"alpha": 1})
    ((*_, speed, plain, speedup),) = main_table(tmp_path, known)
    assert (speed, plain, speedup) == ("64.3", "-", "-")
    found = flat_metrics(summarise(read_rounds(tmp_path), known, 3, 10))
    assert "alpha/speedup" not in found and found["alpha/accepted_length"] == 4.0


def test_mean_calibration_errors_are_tracked():
    values = tiny_summary.full()
    told = ({"rounds": 9, "ece": 0.2}, {"rounds": 5, "ece": 0.1}, {"rounds": 0, "ece": 0.0})
    quality = [values["calibration"]["before"][0] | one for one in told]
    values["calibration"] |= {"before": quality, "after": quality[1:]}
    found = tiny_summary.record(values)
    expected = {"calibration/ece_before": 0.15, "calibration/ece_after": 0.1}
    errors = {key: value for key, value in flat_metrics(found).items() if "ece" in key}
    assert errors == pytest.approx(expected)  # over the positions with rounds


def test_a_benchmark_without_any_answer(tmp_path):
    """All its prompts were longer than the context."""
    (tmp_path / ROUNDS).mkdir()
    write_rounds(tmp_path / ROUNDS / "alpha-00000.parquet", rows("alpha", 0, [3]))
    known = facts(prompts={"alpha": 2, "zeta": 3})
    assert main_table(tmp_path, known)[1] == ("zeta", "0", "-", "-", "-", "-", "-", "-")
    assert "left out: 4" in written(tmp_path, known)


@pytest.mark.parametrize(("width", "tables"), [(140, 1), (80, 2)])
def test_last_screen(folder, capsys, monkeypatch, width, tables):
    monkeypatch.setattr(console.console, "width", width)
    show(sections(folder, facts()))
    shown = capsys.readouterr().out
    assert shown.count("d on t") == tables
    for text in ("2.50 [2.50, 2.50]", "50 %", ".75 .50 .25", "sampler: temperature 0.0"):
        assert text in shown


def test_benchmarks_are_resampled_independently():
    """Two benchmarks alike: with one seed their intervals were equal, and the average's was as wide as each."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 8, 30).tolist()
    found: list[dict] = []
    for name in ("a", "b"):
        for prompt, accepted in enumerate(lengths):
            found += rows(name, prompt, [accepted], plain=False)
    result = summarise(pa.Table.from_pylist(found, SCHEMA), facts(prompts={"a": 30, "b": 30}), 7, 4000)
    one, other = (result.benchmarks[name].metrics.accepted_length for name in ("a", "b"))
    macro = result.macro.accepted_length
    assert one.value == other.value == macro.value
    assert one.interval != other.interval
    width = one.interval[1] - one.interval[0]
    assert macro.interval[1] - macro.interval[0] == pytest.approx(width / 2**0.5, rel=0.06)
