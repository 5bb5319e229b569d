"""The page in a real browser: no error, no request, the JSON's numbers, nothing wider than a phone, dark and light."""

import json
from pathlib import Path

import browser
import html_page
import pytest
import tiny_summary

from pipeline.report.evaluation import Evaluation
from pipeline.report.page import write_html

if browser.program() is None:
    pytest.skip(f"none of {', '.join(browser.PROGRAMS)} on PATH", allow_module_level=True)

CELLS = """JSON.stringify([...document.querySelectorAll('[data-key]')].map(
    e => [...['key', 'value', 'low', 'high', 'evaluation'].map(n => e.dataset[n] ?? null),
          e.firstChild.textContent.trim(), e.querySelector('.aside')?.textContent ?? '']))"""
# Elements that stick out of the page and do not lie in a box that scrolls.
WIDE = """[...document.body.querySelectorAll('*')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('.scroll') && !e.closest('svg'))
    .map(e => e.outerHTML.slice(0, 80)).join(' ')"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page():
    with browser.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Name -> (address, summaries by label)."""
    folder = tmp_path_factory.mktemp("pages")
    long = "a_draft_with_a_rather_long_name_that_goes_on_and_on:v12"
    summaries = {"": tiny_summary.full()}, {long: tiny_summary.full(), "b:v0": tiny_summary.summary("b")}
    found = {}
    for name, each in zip(("one", "two"), summaries, strict=True):
        (folder / name).mkdir()
        told = [
            Evaluation(label or "tiny:v0", tiny_summary.record(summary), "2026-11-30T03:19:49+00:00")
            for label, summary in each.items()
        ]
        path = write_html(folder / name, told, tiny_summary.study_record())
        found[name] = path.as_uri(), each
    return found


@pytest.mark.parametrize("name", ["one", "two"])
def test_in_chromium(page, pages, name):
    address, summaries = pages[name]
    page.events.clear()
    page.open(address, width=360, scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate(WIDE) == ""
    assert page.evaluate(BACKGROUND) == "rgb(17, 22, 28)"
    page.open(address, width=1200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    kinds = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
    assert [event for event in page.events if event["method"] in kinds] == []
    requests = [
        e["params"]["request"]["url"] for e in page.events if e["method"] == "Network.requestWillBeSent"
    ]
    assert {url for url in requests if not url.startswith("data:")} == {address}
    cells = json.loads(page.evaluate(CELLS))
    assert len(cells) > 100
    for key, value, low, high, label, text, aside in cells:
        found = html_page.expected(summaries, tiny_summary.study(), label or "", key)
        interval = found["interval"] if isinstance(found, dict) else None
        assert json.loads(value) == (found["value"] if isinstance(found, dict) else found), key
        assert [json.loads(end) for end in (low, high) if end] == (interval or []), key
        # What is read is what the data say, to the last digit that is shown.
        ends, sign = aside.strip("[]").split(", ") if aside else [], "%" * ("%" in text)
        for said, told in zip([text, *ends], [json.loads(value), *(interval or [])], strict=False):
            told = 1000 * told if key.endswith("/seconds") else told  # shown as milliseconds
            assert html_page.shows(said + sign * (said != text), told), (key, said, told)


def test_the_policy_holds_and_faults_would_be_seen(page, pages, tmp_path):
    """A page that does ask for something: the policy stops it, and the events tell."""
    text = Path(pages["one"][0].removeprefix("file://")).read_text()
    bad = tmp_path / "bad.html"
    bad.write_text(text.replace("</main>", '<img src="http://example.com/x.png"><script>1</script></main>'))
    page.events.clear()
    page.open(bad.as_uri(), width=360)
    said = [e["params"]["entry"]["text"] for e in page.events if e["method"] == "Log.entryAdded"]
    assert any("example.com" in text and "Content Security Policy" in text for text in said)
    assert any("script" in text.lower() for text in said)
