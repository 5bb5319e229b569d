"""The report of a server's answers: what was counted, and what the draft's own evaluation promised."""

import html_page
import pytest
import tiny_summary
from tiny_errors import refused

from data_specs.evaluation import DRAFT, PLAIN, ROUNDS, write_rounds
from data_specs.manifest import read_json, write_json
from data_specs.results.summary import ServedFacts
from data_specs.served import ANSWERS, write_answers
from pipeline.http_client import ServerError
from pipeline.report import markdown
from pipeline.store.artifacts import Store
from stages.served.report import show, write_report


def facts(**changes):
    values = {
        "draft": "tiny_dspark", "target": "tiny", "sampler": {"temperature": 0.0}, "max_new_tokens": 64,
        "thinking": None, "device": "vllm 0.32.0", "dtype": "as served", "server": "http://here:1", "model": "m",
        "plain_server": None, "plain_model": None, "note": None, "prompts": {"zeta": 2, "alpha": 1},
    }  # fmt: skip
    return ServedFacts(**(values | changes))


def row(benchmark, prompt, tokens, accepted, mode=DRAFT, drafts=2):
    drafted = mode == DRAFT
    return {
        "benchmark": benchmark, "prompt": prompt, "key": f"{benchmark}{prompt}", "turn": 0, "mode": mode, "context": 5,
        "tokens": tokens, "seconds": 2.0, "finish": "stop", "drafts": drafts if drafted else None,
        "drafted": 3 * (drafts or 2) if drafted else None, "accepted": accepted if drafted else None,
        "accepted_at": [2, accepted - 2, 0] if drafted else None,
    }  # fmt: skip


ROWS = [
    row("zeta", 0, [1, 2, 3, 4, 99], 2), row("zeta", 1, [1, 2, 3, 4, 5, 99], 3), row("alpha", 0, [7, 8, 9], 2),
    row("alpha", 0, [7, 8], 0, PLAIN),
]  # fmt: skip


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Without the plots, which take most of the time."""
    monkeypatch.setattr(markdown, "png", lambda path, drawings: None)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def work(store):
    return store.begin("evaluation", "tiny_vllm", 1, "5" * 64, {}, {})


def report(work, store, rows=ROWS, known=None, promised=None):
    """What summary.json holds afterwards."""
    (work.path / ANSWERS).mkdir(exist_ok=True)
    write_answers(work.path / ANSWERS / "all-00000.parquet", rows)
    write_report(work, store, known or facts(), [99], promised, 20)
    return read_json(work.path / "summary.json")


def promise(store, answers, levels, **known):
    """An evaluation of the benchmarks ``levels``; ``answers`` (benchmark, prompt, tokens) took a single round each."""
    work = store.begin("evaluation", "tiny_dspark", 1, "e" * 64, {}, {})
    write_json(
        work.path / "summary.json",
        tiny_summary.summary(levels=levels, **({"sampler": {"temperature": 0.0}} | known)),
    )
    (work.path / ROUNDS).mkdir()
    common = {
        "turn": 0, "mode": DRAFT, "context": 9, "drafted": 2, "proposed": 2, "draft_seconds": 0.1,
        "verify_seconds": 0.2, "confidences": None,
    }  # fmt: skip
    rows = [
        common | {
            "benchmark": benchmark, "prompt": prompt, "key": f"{benchmark}{prompt}", "round": n, "tokens": part,
            "emitted": len(part), "accepted": max(0, len(part) - 1), "finish": "stop" if n else None,
        }
        for benchmark, prompt, tokens in answers
        for n, part in enumerate((tokens[:1], tokens[1:]))
    ]  # fmt: skip
    write_rounds(work.path / ROUNDS / "all-00000.parquet", rows)
    return store.commit(work, {})


def test_what_the_counters_say(store, work):
    told = report(work, store)
    assert told["order"] == ["zeta", "alpha"] and told["positions"] == 3
    assert told["served"] == {"steps_told": True, "past_end": 0, "promised": None}
    assert told["facts"]["server"] == "http://here:1"
    zeta, alpha = told["benchmarks"]["zeta"], told["benchmarks"]["alpha"]
    assert zeta["metrics"]["accepted_length"]["value"] == pytest.approx(
        9 / 4
    )  # four and five in two steps each
    assert zeta["metrics"]["acceptance_rate"]["value"] == pytest.approx(5 / 12)
    assert zeta["metrics"]["same_answers"]["value"] is None  # nobody was asked
    assert alpha["metrics"]["same_answers"]["value"] == 0.0
    assert told["macro"]["accepted_length"]["value"] == pytest.approx((9 / 4 + 1) / 2)
    page = html_page.Page((work.path / "report.html").read_text())
    assert page.faults == [] and html_page.wrong_numbers(page, {"served": told}) == []
    assert (work.path / "summary.md").read_text().startswith("# tiny_dspark on tiny\n")


def test_counts_that_are_not_to_be_trusted_are_marked(store, work):
    rows = [row("zeta", 0, [1, 99, 3], 2, drafts=None), row("zeta", 1, [99], 2), row("alpha", 0, [99, 99], 2)]
    told = report(work, store, rows)["served"]
    assert (told["steps_told"], told["past_end"]) == (False, 2)


def test_a_server_that_drafted_nothing_is_named(store, work):
    with refused(ServerError, "http://here:1"):
        report(work, store, [ROWS[0] | {"drafted": 0, "accepted": 0}])
    assert not (work.path / "summary.json").exists()


ANSWERED = [("zeta", 0, [1, 2, 3, 4, 99]), ("zeta", 1, [1, 2, 6]), ("other", 0, [4] * 5)]


def test_a_promise_of_other_benchmarks_is_of_the_common_ones_alone(store, work):
    """Also its average, which is made from its rounds."""
    promised = promise(store, ANSWERED, {"zeta": 1.5, "other": 0.7})
    told = report(work, store, ROWS[:2], facts(prompts={"zeta": 2}), promised)["served"]["promised"]
    assert (told["reference"], told["fingerprint"]) == ("tiny_dspark:v0", "e" * 64)
    summary = told["summary"]
    assert summary["order"] == list(summary["benchmarks"]) == list(summary["facts"]["prompts"]) == ["zeta"]
    assert summary["benchmarks"]["zeta"]["metrics"]["accepted_length"]["value"] == 2.5
    assert summary["macro"]["accepted_length"]["value"] == pytest.approx((4 + 2) / 2)


def test_a_promise_of_the_same_benchmarks_keeps_its_average(store, work):
    promised = promise(store, ANSWERED, {"zeta": 1.5})
    told = report(work, store, ROWS[:2], facts(prompts={"zeta": 2}), promised)
    average = told["served"]["promised"]["summary"]["macro"]
    assert average["accepted_length"]["value"] == 2.5


@pytest.mark.parametrize(
    ("known", "counted"),
    [
        ({}, (2, 1)),
        ({"max_new_tokens": 9}, None),
        ({"sampler": {"temperature": 1.0}}, None),
        ({"thinking": True}, None),
    ],
)
def test_answers_are_compared_where_they_were_to_be_the_same(store, work, known, counted):
    """By key and turn, with the rounds of an answer in order; not the plain ones."""
    promised = promise(store, ANSWERED, {"zeta": 1.5}, **known)
    rows = [*ROWS[:2], row("zeta", 0, [1, 2, 3, 4, 99], 0, PLAIN)]
    told = report(work, store, rows, facts(prompts={"zeta": 2}), promised)
    counts = told["benchmarks"]["zeta"]["counts"]
    found = (counts.get("compared_with_promised"), counts.get("same_as_promised"))
    assert found == (counted or (None, None))


def test_the_last_screen(store, work, capsys):
    report(work, store)
    show(store.commit(work, {}))
    shown = capsys.readouterr().out
    for text in ("2.25", "vllm 0.32.0", "http://here:1", "tiny_vllm:v0", "stage=list"):
        assert text in shown
