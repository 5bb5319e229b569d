"""The last screen: names are no markup, and only what is for the screen is shown."""

from pipeline.report.model import EVERYWHERE, Note, Section, Table, words
from pipeline.report.screen import show


def test_names_are_text(capsys):
    hostile = "[red]a[/red] [link=http://x]b[/link] \\[c]"
    table = Table(hostile, (hostile, "n"), [[words(hostile), words(1)]], where=EVERYWHERE)
    show([Section("s", "S", [table, Note(hostile, where=EVERYWHERE), Note("of the page")])])
    shown = capsys.readouterr().out
    assert shown.count(hostile) == 4 and "of the page" not in shown
