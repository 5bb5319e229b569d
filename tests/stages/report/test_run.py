"""The stage: a page of evaluations that is found again, errors that name what is wrong, and the last screen."""

import html_page
import pytest
import tiny_summary

from data_specs.errors import UserError
from data_specs.manifest import write_json
from pipeline.__main__ import listed
from pipeline.config import Config
from pipeline.store import listing
from pipeline.store.artifacts import Store
from stages.report.run import run_report


@pytest.fixture
def store(tmp_path):
    """Two evaluations of one draft, one of another, and one that shares no benchmark with them."""
    store = Store(tmp_path / "artifacts")
    add(store, "evaluation", "one", "1", {"draft": "d" * 64}, "summary.json", tiny_summary.full())
    add(
        store,
        "evaluation",
        "one",
        "2",
        {"draft": "d" * 64},
        "summary.json",
        tiny_summary.summary(dtype="bfloat16"),
    )
    add(store, "evaluation", "two", "3", {"draft": "e" * 64}, "summary.json", tiny_summary.summary("two"))
    add(store, "evaluation", "odd", "4", {}, "summary.json", tiny_summary.summary(levels={"beta": 1.0}))
    return store


def add(store, kind, name, fingerprint, parents, file, value):
    work = store.begin(kind, name, 1, fingerprint * 64, parents, {})
    write_json(work.path / file, value)
    return store.commit(work, {})


def run(store, *references, **changes):
    return run_report(Config(evaluations=list(references), **changes), store)


def test_two_in_one_page(store, capsys):
    made = run(store, "one:v0", "two")
    assert (made.manifest.kind, made.reference) == ("report", "one_vs_two:v0")
    assert made.manifest.parents == {"one:v0": "1" * 64, "two:v0": "3" * 64}
    made.verify()
    assert set(made.manifest.files) == {"report.html"}
    text = (made.path / "report.html").read_text()
    page = html_page.Page(text)
    assert page.faults == [] and str(store.root) not in text
    summaries = {"one:v0": tiny_summary.full(), "two:v0": tiny_summary.summary("two")}
    assert html_page.wrong_numbers(page, summaries) == []
    assert ("two:v0", "zeta/speedup") in page.numbers
    shown = "".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    assert str(made.path / "report.html") in shown and "python -m pipeline stage=list" in shown


def test_it_is_found_again(store, capsys):
    first = run(store, "one:v0", "two")
    again = run(store, "one:v0", str(store.resolve("evaluation", "two").path))  # a folder names the same
    assert again.path == first.path
    assert "one_vs_two:v0 (" in capsys.readouterr().out
    assert run(store, "one", "two").reference == "one_vs_two:v1"  # another version of the evaluation


def test_one_alone_is_shown_whole(store):
    page = html_page.Page((run(store, "one:v0").path / "report.html").read_text())
    assert html_page.wrong_numbers(page, {"": tiny_summary.full()}) == []
    assert ("", "calibration/after/0/ece") in page.numbers


def test_the_latest_study_of_the_draft_is_shown(store):
    add(store, "study", "one", "7", {"draft": "d" * 64}, "study.json", tiny_summary.study())
    made = run(store, "one:v0", "one:v1")
    assert made.manifest.parents == {"one:v0": "1" * 64, "one:v1": "2" * 64, "study": "7" * 64}
    page = html_page.Page((made.path / "report.html").read_text())
    assert ("", "study/real/0/metrics/throughput") in page.numbers
    assert "study" not in run(store, "one:v0", "two").manifest.parents  # another draft


@pytest.mark.parametrize(
    ("references", "named"),
    [
        ([], ["evaluations"]),
        (["one", "nowhere"], ["evaluation=nowhere", "odd:v0, one:v0, one:v1, two:v0"]),
        (["one", "one:v1"], ["evaluations", "one:v1"]),
        (["one", "odd"], ["one:v1", "zeta, alpha", "odd:v0", "beta"]),
    ],
)
def test_refused(store, references, named):
    with pytest.raises(UserError) as error:
        run(store, *references)
    assert [text for text in named if text not in str(error.value)] == []
    assert store.list("report") == []


def test_equal_references_of_two_stores_are_told_apart(store, tmp_path):
    other = add(
        Store(tmp_path / "other"), "evaluation", "one", "9", {}, "summary.json", tiny_summary.summary()
    )
    made = run(store, "one:v0", str(other.path))
    assert list(made.manifest.parents) == ["one:v0 (11111111)", "one:v0 (99999999)"]


def test_plan_makes_nothing(store, capsys):
    assert run(store, "one", plan=True) is None
    assert "Nothing was done." in capsys.readouterr().out
    assert store.list("report") == []


def test_the_list_shows_it(store):
    run(store, "one:v0", "two")
    (report,) = store.list("report")
    assert listing.summary(report) == "2 evaluations"
    listing.lineage(store.list())


def test_commas_on_the_command_line():
    """To Hydra they would be a sweep."""
    assert listed(["pipeline", "stage=report", "evaluations=a:v1,b", "seed=1"])[2] == "evaluations=[a:v1,b]"
    assert listed(["evaluations=a"]) == ["evaluations=[a]"]
    assert listed(["evaluations=[a,b]"]) == ["evaluations=[a,b]"]
    assert listed(["-m", "evaluations=a,b"]) == ["-m", "evaluations=a,b"]
