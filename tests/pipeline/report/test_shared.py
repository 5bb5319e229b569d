import pytest

from pipeline.report.shared import axes, line, markdown_table, number, save, share, with_interval

NOTHING = {"value": None, "interval": None}


@pytest.mark.parametrize(
    "figure,text",
    [
        ({"value": 2.134, "interval": [1.98, 2.271]}, "2.13 [1.98, 2.27]"),
        ({"value": 2.134, "interval": None}, "2.13"),
        (NOTHING, "-"),
    ],
)
def test_with_interval(figure, text) -> None:
    assert with_interval(figure) == text


def test_shares_and_numbers() -> None:
    assert share({"value": 0.614, "interval": None}) == "61 %"
    assert share(NOTHING) == "-"
    assert number({"value": 3.14159, "interval": None}, "{:.1f}") == "3.1"


def test_markdown_table() -> None:
    text = markdown_table(("drafter", "length"), [["dspark", "2.13"], ["mtp", "-"]])
    assert text == "| drafter | length |\n| --- | ---: |\n| dspark | 2.13 |\n| mtp | - |"


def test_a_line_leaves_out_what_has_no_value(tmp_path) -> None:
    figure, (axis,) = axes(1, (3, 2))
    figures = [{"value": 0.9, "interval": [0.8, 1.0]}, NOTHING, {"value": 0.5, "interval": None}]
    line(axis, [1, 2, 3], figures, "a")
    (drawn,) = axis.lines
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([1, 3], [0.9, 0.5])
    (band,) = axis.collections  # the one interval
    assert band.get_paths()[0].get_extents().ymax == 1.0
    save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
