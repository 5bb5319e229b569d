"""The table of results, without an engine: which rows replace others, and that a row states only what was observed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import environments
import pytest
import results


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRAFTLINE_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch):
    """After ``during(test, run)``, new rows belong to ``test`` in the process ``run``."""

    def change(test: str, run: str = "one") -> None:
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} (call)")
        monkeypatch.setattr(results, "RUN", run)

    return change


def outcomes() -> list[tuple[str, str]]:
    """The draft and the outcome of every row."""
    return [(row[2], row[5]) for row in results.rows()]


@pytest.mark.parametrize(
    "ours,same_output,outcome",
    [
        ([3, 1], True, "output and counters equal"),
        ([3, 1], False, "output DIFFERENT"),
        ([3, 2], True, "counters DIFFERENT"),
        ([3, 2], False, "output and counters DIFFERENT"),
    ],
)
def test_equal_counters_of_other_answers_are_not_equal(ours, same_output: bool, outcome: str) -> None:
    results.add("vllm", "tiny", "dspark", [3, 1], ours, same_output)
    assert outcomes() == [("dspark", outcome)]


def test_rows_of_several_processes_stand_in_one_table(during, folder) -> None:
    during("b.py::one", "first")
    results.add_figure("vllm", "tiny", "one", "old", True)
    results.add_figure("vllm", "tiny", "one more", "old", True)
    during("a.py::two", "second")
    results.add_figure("mlx", "tiny", "two", "9 of 9", True)
    during("b.py::one", "third")
    results.add_figure("vllm", "tiny", "one", "new", False)
    assert outcomes() == [("two", "equal"), ("one", "DIFFERENT")]
    assert results.write() == (folder / "results.md").read_text()
    assert [line.split(" | ")[3] for line in results.write().splitlines()[2:]] == ["9 of 9", "new"]
    assert sorted(path.name for path in folder.iterdir()) == ["results.jsonl", "results.md"]
    results.begin()
    assert results.rows() == []


SKIPPED = ("f.py", 3, "Skipped: no | draft\nof it")
FAILED = SimpleNamespace(reprcrash=SimpleNamespace(message="1 == 2"))


def test_a_long_reason_keeps_its_end_and_no_path_of_this_machine(folder) -> None:
    results.missing(
        "mlx", "test_x", f"not run: {folder}/mlx/bin/python -m pip {'install ' * 40} ended with 1: no index"
    )
    ((*_, outcome, _),) = results.rows()
    assert outcome.startswith("not run: mlx/bin/python -m pip install") and outcome.endswith(
        "with 1: no index"
    )
    assert len(outcome) < 200


@pytest.mark.parametrize(
    "ended,said,outcomes",
    [
        ("skipped", SKIPPED, ["not run: no / draft of it"]),
        ("failed", FAILED, ["FAILED: 1 == 2"]),
        ("passed", None, []),
    ],
)
def test_a_row_that_could_not_be_run_says_so(ended: str, said: object, outcomes: list[str]) -> None:
    item = SimpleNamespace(name="test_x[dspark]", fixturenames=["smollm2", "vllm"], path=Path("test_x.py"))
    report = SimpleNamespace(skipped=ended == "skipped", failed=ended == "failed", longrepr=said)
    results.record(item, report)  # type: ignore[arg-type]
    engine = f"vllm {environments.RECIPES['vllm'].version}"
    assert [row[:3] + row[5:6] for row in results.rows()] == [
        (engine, "-", "test_x[dspark]", outcome) for outcome in outcomes
    ]
