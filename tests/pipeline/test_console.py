import sys

import pytest
from rich.console import Console

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


HOSTILE = "[/INST] [bold]x[/bold] [link=http://x]y[/] :smile: \\[z] C:\\"


def test_text_of_others_is_text_wherever_it_is_shown(capsys) -> None:
    """An error of a server ends with [/INST], a path has [bold] in it."""
    console.say(HOSTILE)
    console.say(HOSTILE, "warning:")
    console.table(HOSTILE, (HOSTILE, "n"), [(HOSTILE, 1)], HOSTILE)
    console.panel(HOSTILE, [HOSTILE])
    console.console.print(HOSTILE)
    with pytest.raises(SystemExit):
        console.fail(ValueError(HOSTILE))
    shown = capsys.readouterr()
    assert shown.out.count(HOSTILE) == 9 and f"warning: {HOSTILE}\n" in shown.out
    assert HOSTILE in shown.err


def test_a_progress_bar_shows_text_on_a_terminal(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(console, "console", Console(width=200, markup=False, emoji=False))
    with console.progress(HOSTILE, 2) as bar:
        bar.advance(2, HOSTILE)
    assert HOSTILE in capsys.readouterr().out


def test_a_terminal_obeys_no_text_of_others(capsys) -> None:
    console.say("a\x1b]0;title\x07b\tc\rd")
    console.table("t", ("a",), [("\x1b[2J",)])
    with pytest.raises(SystemExit):
        console.fail(ValueError("\x9b1A"))
    shown = capsys.readouterr()
    assert "a\\x1b]0;title\\x07b" in shown.out and "\\rd" in shown.out
    assert "\\x1b[2J" in shown.out and "\x1b" not in shown.out
    assert "\\x9b1A" in shown.err
