"""Reads a page with the standard library: what it requests, whether it is well formed, and its numbers."""

import json
import re
from decimal import Decimal
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}
ADDRESSES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background", "formaction"}
COORDINATE = re.compile(r"-?\d+(\.\d+)?")


class Page(HTMLParser):
    """``numbers`` maps (evaluation, key) to the values in the cells; ``faults`` lists what is wrong."""

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.numbers, self.texts, self.ids, self.tags = [], [], {}, [], [], []
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self.open]
        self.faults += [f"id {i} comes twice" for i in {i for i in self.ids if self.ids.count(i) > 1}]

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for name, value in attributes.items():
            self._check(tag, name, value)
        if "data-key" in attributes:
            where = attributes.get("data-evaluation", ""), attributes["data-key"]
            said = {
                n: json.loads(attributes[f"data-{n}"])
                for n in ("value", "low", "high")
                if f"data-{n}" in attributes
            }
            if self.numbers.setdefault(where, said) != said:
                self.faults.append(f"{where}: two values")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> in {self.open[-3:]}")
        else:
            self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "style" and ("url(" in data or "@import" in data):
            self.faults.append("the style loads something")

    def _check(self, tag, name, value):
        if name in ADDRESSES and not (value.startswith("#") or value.startswith("data:")):
            self.faults.append(f"<{tag} {name}={value!r}>")
        if name.startswith("on") or tag == "script":
            self.faults.append(f"a script: <{tag} {name}=...>")
        if name in ("d", "points", "x", "y", "width", "height", "transform", "viewBox"):
            words = re.sub(r"[MHVLCQlhvaz,()]|translate|rotate", " ", value).split()
            self.faults += [f"<{tag} {name}={value!r}>" for word in words if not COORDINATE.fullmatch(word)]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def expected(summaries, study, label, key):
    """The JSON's value at a cell's key: of a benchmark (``zeta/speedup``), else at a path from the top."""
    first, *rest = key.split("/")
    found = study if first == "study" else summaries[label]["benchmarks"].get(first)
    if found is None:
        found = summaries[label][first]
    elif first != "study":
        found = found["metrics"]
    for part in rest:
        if isinstance(found, list):
            found = found[int(part)]
        else:
            found = found.get(part, 0) if part in ("stop", "length") else found[part]
    return found


def shows(text, value):
    """Whether a cell's ``text`` is ``value`` rounded to the last digit that the text shows."""
    named = {"–": None, "yes": True, "no": False}
    if text in named or value is None or isinstance(value, bool):
        return named.get(text, text) is value
    shown = Decimal(re.sub("[^0-9.e+-]", "", text))
    last = Decimal(1).scaleb(shown.as_tuple().exponent)
    return abs(shown - Decimal(value) * (100 if "%" in text else 1)) <= Decimal("0.5001") * last


def wrong_numbers(page, summaries, study=None):
    """(evaluation, key) of every number that differs from the JSON's. ``summaries`` are by label ('' for one)."""
    wrong = []
    for (label, key), said in page.numbers.items():
        found = expected(summaries, study, label, key)
        if isinstance(found, dict):
            known = {"value": found["value"]} | dict(
                zip(("low", "high"), found["interval"] or (), strict=False)
            )
        else:
            known = {"value": found}
        wrong += [(label, key)] * (said != known)
    return wrong
