"""Colours can be read: WCAG contrast of text (4.5) and of signs in charts (3) on the page, in light and dark."""

import re
from pathlib import Path

import pytest

import pipeline.report

STYLE = (Path(pipeline.report.__file__).parent / "style.css").read_text()
COLOUR = re.compile(r"--([\w]+): #([0-9a-f]{6})")
LIGHT, DARK = (dict(COLOUR.findall(block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL))


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(scheme):
    assert contrast("000000", "ffffff") == pytest.approx(21)
    for name in ("text", "muted", "accent", "warn"):
        assert contrast(scheme[name], scheme["page"]) >= 4.5, name
        assert contrast(scheme[name], scheme["soft"]) >= 4.5, name
    for n in range(6):
        assert contrast(scheme[f"c{n}"], scheme["page"]) >= 3, n


def test_both_schemes_name_the_same_colours():
    assert set(LIGHT) == set(DARK)
    assert set(re.findall(r"var\(--(\w+)\)", STYLE)) <= set(LIGHT)
