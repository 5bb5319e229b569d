"""Markdown: tables, what is left out, and names that are no markup."""

from pipeline.report.markdown import code, markdown, markdown_table
from pipeline.report.model import EVERYWHERE, Bars, Drawings, Heading, Note, Section, Table, words


def test_a_table():
    text = markdown_table(("drafter", "length"), [["dspark", "2.13"], ["mtp", "-"]])
    assert text == "| drafter | length |\n| --- | ---: |\n| dspark | 2.13 |\n| mtp | - |"


def test_sections():
    table = Table("two", ("a", "b"), [[words("x"), words(None)]])
    blocks = [
        Heading("one"),
        table,
        Note("how to get it", absent=True),
        Note("said"),
        Drawings([Bars("t", [], "ms")]),
    ]
    empty = Section("none", "Nothing", [Note("how", absent=True, where=EVERYWHERE)])
    assert markdown("d on t", [Section("s", "First", blocks), empty]) == (
        "# d on t\n\n## First\n\n### one\n\ntwo\n\n| a | b |\n| --- | ---: |\n| x | - |\n\nsaid\n"
    )


def test_names_are_text():
    hostile = "a|b\\|*&lt;<img src=x>\n[click](http://x)"
    expected = "a\\|b\\\\\\|\\*&amp;lt;&lt;img src=x> [click]\\(http://x)"
    assert markdown_table((hostile,), []).splitlines()[0] == f"| {expected} |"
    assert markdown(hostile, []) == f"# {expected}\n"


def test_code_ends_with_its_text():
    assert code("sh", ["ls"]) == "```sh\nls\n```"
    assert code("sh", ["a\n````", "<img>"]) == "`````sh\na\n````\n<img>\n`````"
