from pipeline.report.shared import axes, line, save

NOTHING = {"value": None, "interval": None}


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
