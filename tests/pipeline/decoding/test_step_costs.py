"""SPS(B): which B are measured, how a step is made up, the monotone fit, and a profile of the tiny target."""

from pathlib import Path

import pytest
import tiny
import tiny_summary

from data_specs.manifest import write_json
from data_specs.results.records import to_json
from data_specs.sps import read_table
from pipeline.decoding import step_costs
from pipeline.target.model import Target


def test_few_large_steps_are_measured_and_all_small_ones() -> None:
    assert step_costs.token_counts(40) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40]
    assert step_costs.token_counts(3) == [1, 2, 3]
    assert step_costs.token_counts(9) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_step_is_made_of_whole_blocks_and_a_rest() -> None:
    assert step_costs.split(20, 7) == [8, 8, 4]
    assert step_costs.split(16, 7) == [8, 8]
    assert step_costs.split(1, 7) == [1]


def test_the_fit_never_falls_and_keeps_what_rises() -> None:
    assert step_costs.monotone([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert step_costs.monotone([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert step_costs.monotone([1.0, 2.0]) == [1.0, 2.0]


def test_a_profile_of_a_real_target(tmp_path: Path) -> None:
    tiny.save_target(tmp_path)
    target, draft = Target.load(tiny.located(tmp_path), [0, 1]), tiny.draft(block_size=3).eval()
    calls: list[None] = []
    made = to_json(step_costs.measure(target, draft, 12, [4, 9], 2, lambda: calls.append(None)))
    assert len(calls) == step_costs.rounds_of([4, 9], 2) == 8
    assert [curve["context"] for curve in made["contexts"]] == [4, 9]
    for curve in made["contexts"]:
        assert [point["tokens"] for point in curve["points"]] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
        assert all(0 < p["interval"][0] <= p["seconds"] <= p["interval"][1] for p in curve["points"])
        assert curve["fit"] == sorted(curve["fit"])
        assert [point["requests"] for point in curve["draft"]] == [1, 2, 3]
    assert made["machine"]["dtype"] == "float32" and made["machine"]["threads"] >= 1


def test_a_profile_becomes_a_table_for_simulations(tmp_path: Path) -> None:
    """Two requests from B = 5 on; a position costs 1 ms a request."""
    points = [(1, 0.5), (5, 0.5)]
    made = tiny_summary.profile_record([(100, points, [0.6, 1.2]), (300, points, [0.8, 1.6])], block=3)
    write_json(tmp_path / "sps.json", step_costs.table(made, "here", "tiny"))
    table = read_table(tmp_path / "sps.json")
    assert table.position_seconds == pytest.approx(0.001)
    assert table.points == ((1, pytest.approx(2.0)), (5, pytest.approx(1.0)))
    assert table.draft == ((1, 0.25),)
    assert (table.source, table.context, table.machine) == ("measured", 0, "a <CPU>")
