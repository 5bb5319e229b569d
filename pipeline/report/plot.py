"""Draws the drawings of a report with matplotlib: inline SVG for the page, and PNG files.

A drawing is 360 units wide, about the width of a phone, so that its text has the size of the page's text there. In the
SVG, text stays text, colours are variables of style.css (so one drawing serves dark and light mode), and every point
shows its value when it is hovered. Equal drawings give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from data_specs.results.summary import Figure
from pipeline.report.model import Axis, Bars, Drawing, Drawings, Lines, Series, Whiskers, with_interval

WIDTH, HEIGHT, SMALL = 360, 240, (160, 165)
ACROSS = 1120  # width of a PNG, at most
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 10, 40  # margins
ROW, LABEL, LINE = 36, 19, 15  # heights of a row of bars, of a name, and of an interval below it
TITLE, LEGEND, ENTRY = (
    24,
    22,
    150,
)  # of a PNG: heights of a heading and a line of the legend, width of an entry
MARKERS = "osD^"  # circle, square, diamond, triangle: style.css and page.html have the same
STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
LIGHT = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", STYLE.partition("}")[0]))
COLOURS: list[str] = [colour for name, colour in LIGHT.items() if re.fullmatch(r"c\d", name)]
SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "draftline", "text.parse_math": False, "font.size": 11,
    "axes.unicode_minus": False, "axes.spines.left": False, "axes.spines.right": False, "axes.spines.top": False,
    "axes.edgecolor": LIGHT["muted"], "axes.labelcolor": LIGHT["muted"], "axes.labelsize": 12,
    "xtick.color": LIGHT["muted"], "ytick.color": LIGHT["muted"], "xtick.major.size": 0, "ytick.major.size": 0,
    "xtick.minor.size": 0, "ytick.minor.size": 0, "grid.color": LIGHT["rule"], "axes.axisbelow": True,
}  # fmt: skip
UNWANTED = (
    "^.*?(?=<svg)", "<metadata>.*?</metadata>", r"<defs>\s*<(?:style|clipPath).*?</defs>", r' xmlns(:\w+)?="[^"]*"',
    "font-family: [^;]*; ?", ' clip-path="[^"]*"', r' transform="rotate\(-0 [^"]*"',
)  # fmt: skip
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Texts = dict[str, list[str]]  # group of the SVG -> the text of each of its signs


def svg(drawing: Drawing) -> Markup:
    """``drawing`` as an ``<svg>`` element, with a title and a description for screen readers."""
    from matplotlib import rc_context

    with rc_context(SETTINGS):
        width, height = size(drawing)
        figure = _figure(width, height)
        figure.patch.set_visible(False)
        texts = _draw(figure, drawing, 0, 0)
        made = io.StringIO()
        figure.savefig(made, format="svg", metadata=NO_METADATA)
    return _inline(made.getvalue(), drawing.title, texts)


def png(path: Path, drawings: Drawings) -> None:
    """Write ``drawings`` in rows, with their headings and legend, as a PNG file."""
    from matplotlib import rc_context
    from matplotlib.lines import Line2D

    sizes = [size(drawing) for drawing in drawings.charts]
    width, height = max(w for w, _ in sizes), max(h for _, h in sizes) + TITLE
    columns = min(len(sizes), ACROSS // width)
    entries = min(len(drawings.legend), columns * width // ENTRY)
    top = LEGEND * -(-len(drawings.legend) // entries) if len(drawings.legend) > 1 else 0
    with rc_context(SETTINGS):
        figure = _figure(columns * width, top + -(-len(sizes) // columns) * height)
        for place, drawing in enumerate(drawings.charts):
            row, column = divmod(place, columns)
            _draw(figure, drawing, column * width, top + row * height + TITLE)
            figure.axes[-1].set_title(_printable(drawing.title), color=LIGHT["text"], fontsize=12)
        if top:
            signs = [Line2D([], [], color=_colour(n), marker=_marker(n)) for n, _ in drawings.legend]
            labels = [_printable(label) for _, label in drawings.legend]
            figure.legend(signs, labels, loc="upper center", ncols=entries, frameon=False, borderaxespad=0)
        figure.savefig(path, dpi=150, metadata={"Software": None})


def size(drawing: Drawing) -> tuple[int, int]:
    """Width and height of a drawing without heading and legend."""
    if isinstance(drawing, Lines):
        return SMALL if drawing.small else (WIDTH, HEIGHT)
    if isinstance(drawing, Bars):
        return WIDTH, TOP + ROW * max(1, len(drawing.rows))
    return WIDTH, TOP + (LABEL + LINE * len(drawing.labels)) * len(drawing.groups) + BOTTOM


def ticks(axis: Axis, values: Sequence[float]) -> list[float]:
    """The ticks of ``axis``, or round numbers that enclose ``values`` if it has none."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if axis.ticks is not None:
        return list(axis.ticks)
    if axis.log:
        low, high = min(values, default=1), max(values, default=10)
        found = LogLocator(subs=(1, 2, 5), numticks=20).tick_values(low / 10, high * 10)
        first, last = max(tick for tick in found if tick <= low), min(tick for tick in found if tick >= high)
        return [float(tick) for tick in found if first <= tick <= last]
    known = [*values, *([] if axis.least is None else [axis.least])]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    found = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high if high > low else low + 1)
    return [float(round(tick, 10)) for tick in found]


# --- on the figure ----------------------------------------------------------------------------------------


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure  # no pyplot: no display, no global state

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def _draw(figure: Any, drawing: Drawing, x: float, y: float) -> Texts:
    """Draw into the rectangle whose upper left corner is at ``x``, ``y``; returns the texts of the signs."""
    width, height = size(drawing)
    kinds: dict[type, tuple[Callable[[Any, Any], Texts], int, int, int]] = {
        Lines: (_lines, min(LEFT, width // 4), RIGHT, BOTTOM),
        Whiskers: (_whiskers, 12, 24, BOTTOM),
        Bars: (_bars, 12, 12, 0),
    }
    draw, left, right, below = kinds[type(drawing)]
    whole_width, whole_height = 72 * figure.get_size_inches()
    inner = (width - left - right, height - TOP - below)
    corner = ((x + left) / whole_width, 1 - (y + TOP + inner[1]) / whole_height)
    axes = figure.add_axes((*corner, inner[0] / whole_width, inner[1] / whole_height))
    axes.patch.set_visible(False)
    return draw(axes, drawing)


def _lines(axes: Any, drawing: Lines) -> Texts:
    for one in drawing.series:
        _line(axes, one)
    points = [p for one in drawing.series for p in one.points]
    heights = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    _scale(axes, "x", drawing.x, [p.x for p in points])
    _scale(axes, "y", drawing.y, heights)
    axes.grid(axis="y")
    low, high = axes.get_xlim()
    for place in drawing.guides:
        if low <= place <= high:
            axes.axvline(place, color=LIGHT["muted"], linewidth=1, linestyle=":")
    if drawing.diagonal:
        axes.plot([0, 1], [0, 1], transform=axes.transAxes, color=LIGHT["muted"], linewidth=1, linestyle="--")
    return {_group(n): [p.text for p in one.points] for n, one in enumerate(drawing.series)} | {
        "": [f"{drawing.y.label} over {drawing.x.label}"]
    }


def _line(axes: Any, one: Series) -> None:
    number, colour = len(axes.collections), _colour(one.style)
    x, y = [p.x for p in one.points], [p.y for p in one.points]
    axes.scatter(
        x, y, s=[(2 * p.size) ** 2 for p in one.points], color=colour, marker=_marker(one.style), linewidths=0,
        clip_on=False, gid=_group(number), zorder=3,
    )  # fmt: skip
    if one.loose:
        return
    axes.plot(x, y, color=colour, linewidth=1.8, clip_on=False)
    ranged = [(p.x, p.low, p.high) for p in one.points if p.low is not None]
    if len(ranged) > 1:
        xs, low, high = zip(*ranged, strict=True)
        outline = [*xs, *reversed(xs)], [*high, *reversed(low)]
        axes.fill(*outline, color=colour, alpha=0.13, linewidth=0, clip_on=False)


def _whiskers(axes: Any, drawing: Whiskers) -> Texts:
    """Each group's name, with one interval per line below it; with a single label, values stand beside the names."""
    high = LABEL + LINE * len(drawing.labels)
    texts: Texts = {"": [drawing.x.label]}
    figures = [figure for _, each in drawing.groups for figure in each if figure.value is not None]
    _rows(axes, high * len(drawing.groups))
    _scale(axes, "x", drawing.x, [end for f in figures for end in (f.value, *(f.interval or ()))])
    axes.axvline(drawing.at, color=LIGHT["muted"], linewidth=1, linestyle="--")
    for number, (name, each) in enumerate(drawing.groups):
        _name(axes, high * number, name, with_interval(each[0]) if len(drawing.labels) == 1 else "")
        for style, (label, figure) in enumerate(zip(drawing.labels, each, strict=True)):
            if figure.value is not None:
                key = f"{_group(number)}x{style}"
                _whisker(axes, figure, high * number + LABEL + LINE * (style + 0.4), style, key)
                texts[key] = [f"{', '.join(filter(None, (name, label)))}: {with_interval(figure)}"]
    return texts


def _whisker(axes: Any, figure: Figure, y: float, style: int, key: str) -> None:
    colour, value = _colour(style), figure.value
    ends = figure.interval or [value, value]
    axes.plot(ends, [y, y], color=colour, linewidth=4, alpha=0.4, solid_capstyle="round")
    sign = {"marker": _marker(style), "color": colour, "linewidths": 0, "zorder": 3, "clip_on": False}
    axes.scatter([value], [y], s=70, gid=key, **sign)


def _bars(axes: Any, drawing: Bars) -> Texts:
    sums = [sum(length for _, length in parts) for _, parts in drawing.rows]
    texts: Texts = {}
    _rows(axes, ROW * max(1, len(drawing.rows)))
    axes.set(xlim=(0, max(sums, default=0.0) or 1.0), xticks=[])
    axes.spines["bottom"].set_visible(False)
    for number, ((name, parts), whole) in enumerate(zip(drawing.rows, sums, strict=True)):
        _name(axes, ROW * number, name, f"{whole:.1f} {drawing.unit}")
        start = 0.0
        for style, (part, length) in enumerate(parts):
            key = f"{_group(number)}x{style}"
            axes.barh(ROW * number + 21.5, length, 13, left=start, color=_colour(style), gid=key)
            texts[key] = [f"{name}, {part}: {length:.1f} {drawing.unit}"]
            start += length
    return texts


def _rows(axes: Any, height: float) -> None:
    """Set up a vertical axis without ticks that counts units from the top."""
    axes.set_ylim(height, 0)
    axes.set_yticks([])


def _name(axes: Any, y: float, name: str, value: str) -> None:
    for x, text, side in ((0, name, "left"), (1, value, "right")):
        axes.text(
            x, y + 12, _printable(text), color=LIGHT["text"], fontsize=12, ha=side, va="baseline",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip


def _scale(axes: Any, name: str, axis: Axis, values: Sequence[float]) -> None:
    """Set scale, ends, ticks and label of the axis ``name`` (x or y)."""
    from matplotlib.ticker import NullLocator

    found = ticks(axis, values)
    low, high = found[0], found[-1]
    if low == high:
        low, high = (low / 2, high * 2) if axis.log else (low - 0.5, high + 0.5)
    axes.set(**{f"{name}scale": "log" if axis.log else "linear", f"{name}lim": (low, high)})
    axes.set(**{f"{name}label": _printable(axis.label)})
    drawn = axes.xaxis if name == "x" else axes.yaxis
    # Thousands are written as 20k on long axes.
    texts = [f"{t / 1000:g}k" if t and found[-1] >= 10_000 else f"{t:g}" for t in found]
    drawn.set_ticks(found, texts)
    drawn.set_minor_locator(NullLocator())
    if name == "y":
        drawn.set_label_coords(-34 / axes.bbox.width, 0.5)


def _colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)]


def _marker(style: int) -> str:
    return MARKERS[style % len(MARKERS)]


def _group(number: int) -> str:
    return f"series{number}"


def _printable(text: str) -> str:
    """``text`` with spaces in place of characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


# --- inline -----------------------------------------------------------------------------------------------


def _inline(made: str, title: str, texts: Texts) -> Markup:
    """Turn matplotlib's SVG into an element of the page with unique ids, without styles, with a text for each sign."""
    for unwanted in UNWANTED:
        made = re.sub(unwanted, "", made, flags=re.DOTALL)
    made = made.replace("xlink:href", "href")
    for name, colour in reversed(LIGHT.items()):  # c0 is also the accent
        made = made.replace(colour, f"var(--{name})")
    said = _printable("; ".join(filter(None, (text for each in texts.values() for text in each))))
    key = hashlib.sha256(f"{title}{said}{made}".encode()).hexdigest()[:10]
    root = ElementTree.fromstring(made)
    _describe(root, texts)
    _shorten(root, key)
    root.attrib = {
        "class": "chart", "viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": f"t{key}",
        "aria-describedby": f"d{key}",
    }  # fmt: skip
    for place, (tag, text) in enumerate((("title", _printable(title)), ("desc", said))):
        element = ElementTree.Element(tag, {"id": f"{tag[0]}{key}"})
        element.text = text
        root.insert(place, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _describe(root: ElementTree.Element, texts: Texts) -> None:
    """Add its text to every sign as a title."""
    groups = {element.get("id"): element for element in root.iter("g")}
    for key, each in texts.items():
        signs = [] if key not in groups else [s for s in groups[key].findall(".//*[@style]") if s.tag != "g"]
        for sign, text in zip(signs, each, strict=False):
            ElementTree.SubElement(sign, "title").text = _printable(text)


def _shorten(root: ElementTree.Element, key: str) -> None:
    """Drop unused ids, begin the others with ``key``, and round numbers to one decimal."""
    used = {element.get("href", "")[1:] for element in root.iter("use")}
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", f"{key}{name}")
        if "href" in element.attrib:
            element.set("href", f"#{key}{element.attrib['href'][1:]}")
        for attribute in ("d", "x", "y", "transform"):
            if attribute in element.attrib:
                numbers = re.sub(
                    r"-?\d+\.\d+(e-?\d+)?", lambda found: f"{float(found[0]):.1f}", element.attrib[attribute]
                )
                element.set(attribute, " ".join(numbers.split()))
        element.text, element.tail = (element.text or "").strip(), ""
