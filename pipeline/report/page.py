"""The page: sections of one evaluation, or of several side by side, as one self-contained HTML file.

Nothing is loaded from anywhere: the style is inline, drawings are inline SVG, there is no script, and the page's
Content-Security-Policy forbids every request. Names are escaped by Jinja (autoescape) and by svg.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report import confidence, figures, lossless, positions, provenance, served, side_by_side, steps
from pipeline.report import study as serving
from pipeline.report.evaluation import Evaluation
from pipeline.report.model import Cell, Section, told

PAGE = "report.html"
HEADLINES = (
    ("accepted length", "accepted_length", "{:.2f}"),
    ("speedup", "speedup", "{:.2f}×"),
    ("tokens/s", "tokens_per_second", "{:.1f}"),
    ("acceptance", "acceptance_rate", "{:.1%}"),
)


@dataclass(frozen=True)
class Page:
    """A title, one line below it, a few large numbers, and sections."""

    title: str
    subtitle: str
    headlines: Sequence[tuple[str, Cell]]
    sections: Sequence[Section]


def write_html(folder: Path, evaluations: Sequence[Evaluation], study: dict[str, Any] | None = None) -> Path:
    """Write ``report.html`` into ``folder`` and return its path.

    ``study`` is what study.json holds; it may stand alone, without an evaluation. Raises ``ReportError`` where several
    evaluations share no benchmark.
    """
    path = folder / PAGE
    path.write_text(render(evaluations, study), encoding="utf-8")
    return path


def render(evaluations: Sequence[Evaluation], study: dict[str, Any] | None = None) -> str:
    """The page's text; see ``write_html``."""
    page = _page(evaluations, study)
    environment = Environment(
        loader=PackageLoader("pipeline.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(page=page, style=Markup(style))


def _page(evaluations: Sequence[Evaluation], study: dict[str, Any] | None) -> Page:
    if len(evaluations) == 1:
        one = evaluations[0]
        return served_page(one) if "served" in one.summary else one_page(one, study)
    return comparison_page(evaluations, study) if evaluations else study_page(study or {})


def study_page(study: dict[str, Any]) -> Page:
    """A serving study whose draft was not evaluated by itself."""
    facts = study["facts"]
    return Page(f"{facts['draft']} on {facts['target']}", serving.TITLE, [], [serving.serving(study)])


def one_page(one: Evaluation, study: dict[str, Any] | None) -> Page:
    """The report of one evaluation."""
    facts, rows = one.summary["facts"], one.rows
    sections = [
        figures.benchmarks(one),
        positions.by_position(one),
        figures.cost(one),
        steps.steps(one),
        confidence.calibration(one),
        confidence.sweep(one),
        serving.serving(study),
        lossless.losslessness(one),
        figures.contexts(one),
        provenance.setting(one),
        provenance.ancestry([one]),
    ]
    headlines = _headlines(*rows[-1]) if rows else []
    scope = f"macro average of {len(one.named)} benchmarks" if len(rows) > 1 else ", ".join(one.named)
    subtitle = f"{facts['device']}, {facts['dtype']}; {scope or 'no figures'}; {one.created[:10]}"
    return Page(f"{facts['draft']} on {facts['target']}", subtitle, headlines, sections)


def served_page(one: Evaluation) -> Page:
    """The report of an evaluation of a server, beside the draft's own where there is one."""
    facts, rows = one.summary["facts"], one.rows
    headlines = _headlines(*rows[-1], served.SERVED) if rows else []
    subtitle = f"served by {facts['device']}; {', '.join(one.named) or 'no figures'}; {one.created[:10]}"
    return Page(f"{facts['draft']} on {facts['target']}", subtitle, headlines, served.sections(one))


def _headlines(_: str, path: str, metrics: dict[str, Any], evaluation: str = "") -> list[tuple[str, Cell]]:
    return [(label, told(f"{path}/{key}", metrics[key], form, evaluation)) for label, key, form in HEADLINES]


def comparison_page(evaluations: Sequence[Evaluation], study: dict[str, Any] | None) -> Page:
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
    targets = dict.fromkeys(one.summary["facts"]["target"] for one in evaluations)
    title = f"{len(evaluations)} evaluations on {', '.join(targets)}"
    return Page(title, ", ".join(one.label for one in evaluations), [], sections)
