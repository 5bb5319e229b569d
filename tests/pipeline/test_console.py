import pytest

from pipeline import console


@pytest.mark.parametrize(
    "seconds,text", [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert console.duration(seconds) == text


@pytest.mark.parametrize("count,text", [(812, "812 B"), (3_400_000, "3.4 MB"), (1.2e12, "1.2 TB")])
def test_size(count: float, text: str) -> None:
    assert console.size(count) == text


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.progress("answers", 10) as bar:
        for second in (4.0, 12.0, 13.0):
            now[0] = second
            bar.advance(1, "98 tokens/s")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["answers: 2/10, 48 s left  98 tokens/s"]


def test_no_time_is_told_by_the_first_of_many(capsys, monkeypatch) -> None:
    """One of a batch of sixteen ends after a minute: fifteen more are about to."""
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.progress("answers", 916) as bar:
        for second, done in ((60.0, 1), (70.0, 99)):
            now[0] = second
            bar.advance(done)
    assert capsys.readouterr().out.splitlines() == ["answers: 1/916", "answers: 100/916, 9 min 31 s left"]


def test_of_one_of_many_runs_only_lines_are_shown(capsys) -> None:
    with console.brief():
        console.table("Parameters", ("", "count"), [("draft", 7)])
        console.say("  trained on nothing else")
        console.say("Draft d:v0")
        console.panel("Evaluation", ["next: list"])
    console.panel("Comparison", ["next: list"])
    shown = capsys.readouterr().out
    assert shown.startswith("Draft d:v0\n")
    assert "Comparison" in shown and "Evaluation" not in shown and "Parameters" not in shown
