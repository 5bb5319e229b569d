"""The page: well formed, asks for nothing, says exactly what the JSON says, and how to get what is not there."""

import re

import html_page
import tiny_summary
from tiny_summary import evaluation

from pipeline.report.page import PAGE, render, write_html


def read(*arguments):
    evaluations, *study = arguments
    page = html_page.Page(render(evaluations, *map(tiny_summary.study_record, study)))
    assert page.faults == []
    return page


def test_the_whole_page_says_what_the_json_says():
    summary, study = tiny_summary.full(), tiny_summary.study()
    page = read([evaluation(summary)], study)
    assert html_page.wrong_numbers(page, {"": summary}, study) == []
    keys = {key for _, key in page.numbers}
    for key in (
        "zeta/accepted_length", "macro/speedup", "alpha/survival/2", "zeta/conditional/0", "zeta/same_answers",
        "benchmarks/zeta/counts/answers", "benchmarks/alpha/finish/length", "context/1/draft_ms",
        "calibration/after/1/ece", "calibration/temperatures/2", "sweep/9/rejected",
        "profile/contexts/1/points/2/seconds", "study/real/8/metrics/budget",
        "study/simulated/1/metrics/throughput", "study/simulated/10/arrival", "study/prediction/0/error",
        "study/fronts/measured/sla/plain/10", "study/checks/h100/algorithm_1/shortfall",
        "study/checks/h100/algorithm_1/same_load", "study/checks/h100/algorithm_1/plain_ahead_from",
    ):  # fmt: skip
        assert key in keys
    assert "study/simulated/0/metrics/throughput" not in keys  # of this machine: the prediction has it
    assert page.numbers["", "zeta/accepted_length"] == {"value": 2.5, "low": 2.4, "high": 2.5 + 0.1 / 3}


def test_a_digit_that_is_wrong_would_be_seen():
    """Of ``html_page.shows``, by which the browser's text is compared."""
    for text, value in (
        ("2.35", 2.3456),
        ("12.3 %", 0.1234),
        ("1,235", 1234.56),
        ("1.25×", 1.25),
        ("–", None),
    ):
        assert html_page.shows(text, value)
    for text, value in (("2.34", 2.3456), ("12.4 %", 0.1234), ("0.12", 12.3), ("–", 0.0), ("0.00", None)):
        assert not html_page.shows(text, value)


def test_what_a_person_reads():
    text = read([evaluation(tiny_summary.full())], tiny_summary.study()).text
    assert "acceptance by position" not in text  # curves show it
    for words in (
        "tiny_dspark on tiny", "2.50 [2.40, 2.53]", "50.0 % [40.0, 53.3]", "32,768 and more",
        "the chat template's default",
        "Temperature 0 in float32: every answer is expected to equal the target's own. They all do.",
        "a <CPU>, 2 cores, 2 threads, float32", "24.6 [24.0, 26.2]",
        "1,234 rounds of 8 held-out prompts of chat", "tiny_dspark:v2", "not in this store", "2026-11-30 03:19 UTC",
        "torch 2.13.0", "Simulated with the costs of h100, Poisson arrivals", "at 80 tokens/s/user", "+3.6 %",
        "h100 algorithm_1 fixed_7 1.2 % 2.0 % yes 3.5 % 2048 yes",
    ):  # fmt: skip
        assert words in text


def test_sections_without_data_say_how_to_get_them():
    page = read([evaluation(tiny_summary.summary())])
    for words in (
        "evaluate.profile=true",
        "evaluate.calibrate=true",
        "evaluate.sweep=true",
        "experiment=serving_study",
    ):
        assert words in page.text
    old = {
        name: value for name, value in tiny_summary.summary().items() if name not in ("calibration", "sweep")
    }
    assert "evaluate.sweep=true" in read([evaluation(old)]).text  # made before there were any


def test_benchmarks_without_any_answer_still_make_a_page():
    summary = tiny_summary.summary()
    nothing = {"counts": {"prompts": 0, "too_long": 4}, "metrics": None, "finish": {}}
    summary["benchmarks"]["zeta"] |= nothing
    page = read([evaluation(summary)])
    assert html_page.wrong_numbers(page, {"": summary}) == []
    summary["benchmarks"]["alpha"] |= nothing
    assert "no figures" in read([evaluation(summary | {"macro": None, "context": []})]).text


def test_hostile_names_are_text():
    name = "\"><script>alert('1')</script><img src=http://x/y onerror=alert(2)>&"
    summary = tiny_summary.full(draft=name, levels={name: 1.5, "alpha": 0.7})
    summary["calibration"]["data"] = name
    study = tiny_summary.study()
    study["real"][0]["policy"] = study["facts"]["target"] = study["simulated"][1]["sps"] = name
    for page in (
        read([evaluation(summary, name)], study),
        read([evaluation(summary, name), evaluation(summary, "b")]),
    ):
        assert name in page.text
        assert {tag for tag, _ in page.tags} & {"script", "img", "iframe", "object"} == set()


def test_a_study_may_stand_alone():
    study = tiny_summary.study()
    page = read([], study)
    assert html_page.wrong_numbers(page, {}, study) == []
    assert "tiny_dspark on tiny Serving under load" in page.text
    assert ("", "study/real/0/metrics/throughput") in page.numbers


def test_two_evaluations_stand_side_by_side():
    summaries = {
        "a:v0": tiny_summary.full(),
        "b:v3": tiny_summary.summary("other", positions=2, dtype="bfloat16"),
    }
    page = read([evaluation(summary, label) for label, summary in summaries.items()])
    assert html_page.wrong_numbers(page, summaries) == []
    for key in ("zeta/accepted_length", "macro/speedup", "alpha/survival/1", "zeta/draft_ms"):
        assert ("a:v0", key) in page.numbers and ("b:v3", key) in page.numbers
    assert ("b:v3", "zeta/survival/2") not in page.numbers  # its block is shorter
    assert ("a:v0", "calibration/after/1/ece") in page.numbers


def test_the_page_forbids_what_it_does_not_need(tmp_path):
    path = write_html(tmp_path, [evaluation(tiny_summary.full())])
    assert path == tmp_path / PAGE
    page = html_page.Page(path.read_text())
    metas = [attributes for tag, attributes in page.tags if tag == "meta"]
    (policy,) = [m["content"] for m in metas if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert any(m.get("name") == "viewport" for m in metas)
    assert all(a.get("scope") in ("row", "col") for tag, a in page.tags if tag == "th")
    assert [tag for tag, _ in page.tags if re.fullmatch("h[12]", tag)][:3] == ["h1", "h2", "h2"]
    drawings = [n for n, (tag, a) in enumerate(page.tags) if tag == "svg" and "chart" in a["class"]]
    assert len(drawings) > 5
    for n in drawings:
        assert [tag for tag, _ in page.tags[n + 1 : n + 3]] == ["title", "desc"]


def test_the_page_does_not_depend_on_when_it_is_made():
    assert render([evaluation(tiny_summary.full())]) == render([evaluation(tiny_summary.full())])
