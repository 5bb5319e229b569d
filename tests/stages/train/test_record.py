from pathlib import Path

from stages.train.record import Record, plot, read_lines


def heldout(step: int, length: float) -> dict[str, object]:
    return {
        "kind": "heldout",
        "step": step,
        "loss": 1.0,
        "accepted_length": length,
        "accepted_length_greedy": 1.5,
    }


def train(step: int) -> dict[str, object]:
    return {"kind": "train", "step": step, "loss": 2.0, "accepted_length": 1.2}


def record(tmp_path: Path, *lines: dict[str, object]) -> Record:
    made = Record(tmp_path / "metrics.jsonl")
    for line in lines:
        made.append(line)
    return made


def test_rewind_drops_later_lines(tmp_path: Path) -> None:
    """Pitfall 37: after a resume from step 2 the steps go on with 3 and never backwards."""
    record(tmp_path, train(1), train(2), heldout(2, 1.5), train(3), heldout(4, 9.0))
    again = Record(tmp_path / "metrics.jsonl")
    again.rewind(2)
    again.append(train(3))
    assert [(line["kind"], line["step"]) for line in read_lines(tmp_path / "metrics.jsonl")] == [
        ("train", 1),
        ("train", 2),
        ("heldout", 2),
        ("train", 3),
    ]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    made = record(tmp_path, train(1), train(2))
    with made.path.open("a") as file:
        file.write('{"kind": "train", "st')
    assert [line["step"] for line in Record(made.path).lines] == [1, 2]


def test_the_best_is_the_earliest_of_equals(tmp_path: Path) -> None:
    made = record(tmp_path, heldout(2, 1.5), heldout(4, 1.7), train(5), heldout(6, 1.7), heldout(8, 1.6))
    assert [made.best(until)["step"] for until in (2, 5, None)] == [2, 4, 4]  # type: ignore[index]
    assert made.best(until=1) is None


def test_other_ranks_do_not_write(tmp_path: Path) -> None:
    other = Record(tmp_path / "metrics.jsonl", writer=False)
    other.append(train(1))
    other.rewind(0)
    assert other.lines == []
    assert not other.path.exists()


def test_plot_writes_a_png(tmp_path: Path) -> None:
    for name, lines in {
        "full": [train(1), heldout(1, 1.4), train(2), heldout(2, 1.5)],
        "no_heldout": [train(1)],
    }.items():
        plot(lines, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
