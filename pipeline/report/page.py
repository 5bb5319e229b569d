"""Writes the sections of one evaluation, or of several side by side, as one self-contained HTML file.

The page loads nothing: style and drawings (SVG) are inline, there is no script, and its Content-Security-Policy forbids
every request. Jinja escapes every text (autoescape).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from data_specs.results.study import StudyResult
from data_specs.results.summary import Metrics, ServedSummary
from pipeline.report import confidence, figures, provenance, served, side_by_side
from pipeline.report import study as serving
from pipeline.report.evaluation import Evaluation
from pipeline.report.model import PAGE as WRITER
from pipeline.report.model import Block, Cell, Metric, Page, Section, Table, cells, titles
from pipeline.report.plot import MARKERS, STYLE, svg

PAGE = "report.html"
SIGNS = {"o": "●", "s": "■", "D": "◆", "^": "▲"}  # matplotlib's marker -> character
HEADLINES = (
    Metric("accepted length", "accepted_length"),
    Metric("speedup", "speedup", "{:.2f}×"),
    Metric("tokens/s", "tokens_per_second", "{:.1f}"),
    Metric("acceptance", "acceptance_rate", "{:.1%}"),
)


def write_html(folder: Path, evaluations: Sequence[Evaluation], study: StudyResult | None = None) -> Path:
    """Write ``report.html`` into ``folder`` and return its path; the page may show ``study`` without any evaluation.

    Raises ``ReportError`` for several evaluations without a common benchmark.
    """
    path = folder / PAGE
    path.write_text(render(evaluations, study), encoding="utf-8")
    return path


def render(evaluations: Sequence[Evaluation], study: StudyResult | None = None) -> str:
    """The text of the page that ``write_html`` writes."""
    return html(_page(evaluations, study))


def html(page: Page) -> str:
    """``page`` as one HTML file."""
    environment = Environment(
        loader=PackageLoader("pipeline.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    sections = [(section, [_block(block) for block in section.shown(WRITER)]) for section in page.sections]
    signs, style = [SIGNS[marker] for marker in MARKERS], Markup(STYLE)
    return environment.get_template("page.html").render(
        page=page, sections=sections, style=style, svg=svg, signs=signs
    )


def _block(block: Block) -> tuple[str, Block]:
    """Kind and block, for the template."""
    return type(block).__name__.lower(), block.on_page if isinstance(block, Table) else block


def _page(evaluations: Sequence[Evaluation], study: StudyResult | None) -> Page:
    if len(evaluations) == 1:
        one = evaluations[0]
        return served_page(one) if isinstance(one.summary, ServedSummary) else one_page(one, study)
    if evaluations:
        return comparison_page(evaluations, study)
    assert study is not None, "a page shows an evaluation or a study"
    return Page(serving.title(study), serving.TITLE, [], [serving.serving(study)])


def evaluation_sections(one: Evaluation) -> list[Section]:
    """The sections of one evaluation that need only its summary."""
    return [
        figures.benchmarks(one),
        figures.by_position(one),
        figures.cost(one),
        figures.steps(one),
        confidence.calibration(one),
        confidence.sweep(one),
        figures.losslessness(one),
        figures.contexts(one),
    ]


def one_page(one: Evaluation, study: StudyResult | None) -> Page:
    """The report of one evaluation."""
    facts, rows = one.summary.facts, one.rows
    sections = [
        *evaluation_sections(one),
        serving.serving(study),
        provenance.setting(one),
        provenance.ancestry([one]),
    ]
    headlines = _headlines(*rows[-1]) if rows else []
    scope = f"macro average of {len(one.named)} benchmarks" if len(rows) > 1 else ", ".join(one.named)
    subtitle = f"{facts.device}, {facts.dtype}; {scope or 'no figures'}; {one.created[:10]}"
    return Page(one.title, subtitle, headlines, sections)


def served_page(one: Evaluation) -> Page:
    """The report of an evaluation of a server, beside the draft's own evaluation if there is one."""
    facts, rows = one.summary.facts, one.rows
    headlines = _headlines(*rows[-1], served.SERVED) if rows else []
    subtitle = f"served by {facts.device}; {', '.join(one.named) or 'no figures'}; {one.created[:10]}"
    return Page(one.title, subtitle, headlines, served.sections(one))


def _headlines(_: str, path: str, metrics: Metrics, evaluation: str = "") -> list[tuple[str, Cell]]:
    return list(zip(titles(HEADLINES), cells(path, metrics, HEADLINES, evaluation), strict=True))


def comparison_page(evaluations: Sequence[Evaluation], study: StudyResult | None) -> Page:
    """Two or more evaluations side by side."""
    sections = [
        side_by_side.side_by_side(evaluations),
        side_by_side.positions(evaluations),
        side_by_side.costs(evaluations),
        side_by_side.calibrations(evaluations),
        *([serving.serving(study)] if study else []),
        provenance.settings(evaluations),
        provenance.ancestry(evaluations),
    ]
    targets = dict.fromkeys(one.summary.facts.target for one in evaluations)
    title = f"{len(evaluations)} evaluations on {', '.join(targets)}"
    return Page(title, ", ".join(one.label for one in evaluations), [], sections)
