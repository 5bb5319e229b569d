from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_capture import ROWS, answers_of, config_of, plan_of, row_of, run
from tiny_errors import refused

from data_specs import files
from data_specs.target_cache import CacheError
from pipeline.config import ConfigError
from pipeline.store.artifacts import Store
from pipeline.target.model import Target
from stages.cache.capture import run_capture
from stages.cache.plan import check_positions, plan_batches


def test_rows_without_a_supervised_token_are_left_out_and_counted() -> None:
    """Pitfall 11: fully masked after truncation; never cached."""
    rows = [
        row_of(0, 10, 5),  # cut in its answer
        row_of(1, 12, 5),  # cut before its answer
        row_of(2, 5, 0),
        row_of(3, 0, 1),  # the first token is nobody's label
        row_of(4, 3, 3),
        row_of(5, 3, 3, split="benchmark"),
    ]
    plan = plan_of(rows, max_length=12)
    assert [sample.key[:2] for sample in plan.samples] == ["00", "04"]
    assert plan.left_out == {"no supervised token": 3, "split benchmark": 1}
    assert plan.truncated == 1
    assert plan.samples[0].loss_mask.tolist() == [False] * 10 + [True] * 2


def test_the_plan_does_not_depend_on_the_order_of_the_answers() -> None:
    rows = [*ROWS, row_of(6, 3, 4, key="00" * 32, turn=1)]
    plan, other = plan_of(rows, segment_tokens=24), plan_of(rows[::-1], segment_tokens=24)
    assert [sample.key for sample in plan.samples] == [sample.key for sample in other.samples]
    assert [sample.key[-4:] for sample in plan.samples[:3]] == ["00:0", "00:1", "01:0"]
    assert plan.segments == other.segments == [[0, 1], [2, 3], [4], [5], [6]]


def test_a_row_with_an_id_that_the_target_has_no_embedding_for_is_left_out() -> None:
    """The tokenizer may know more tokens than the model has rows; one such row must not stop the others."""
    plan = plan_of([row_of(0, 3, 3, answer_ids=[1, 272]), row_of(1, 3, 3)])
    assert [sample.key[:2] for sample in plan.samples] == ["01"]
    assert list(plan.left_out.values()) == [1]
    with pytest.raises(CacheError, match="272"):
        plan_of([row_of(0, 3, 3, answer_ids=[1, 272])])


def test_a_sample_beyond_the_targets_positions_is_named() -> None:
    plan = plan_of([row_of(0, 3, 3), row_of(1, 10, 5)])
    for positions in (None, 15):
        check_positions(plan, positions)
    with refused(ConfigError, "capture.max_length=14", f"{'01' * 32}:0", 15):
        check_positions(plan, 14)


def test_nothing_to_cache_is_an_error() -> None:
    with refused(CacheError, 1, {"no supervised token": 1}):
        plan_of([row_of(0, 3, 0)])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([9, 2, 3, 4], [[1, 2, 3], [0]]),  # 3 * 4 = 12 with padding; a fourth of 9 would be 36
        ([20, 1], [[1], [0]]),
        ([6, 6, 6], [[0, 1], [2]]),
        ([], []),
    ],
)
def test_batches_are_sorted_by_length_and_bounded_with_their_padding(
    lengths: list[int], expected: list[list[int]]
) -> None:
    assert plan_batches(lengths, 12) == expected


def test_plan_prints_and_does_nothing_else(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = config_of(target_folder, tmp_path)
    config.plan = True
    answers = answers_of(tmp_path, ROWS)
    before = sorted(tmp_path.rglob("*"))
    assert run_capture(config, Store(tmp_path), answers) is None
    assert sorted(tmp_path.rglob("*")) == before
    shown = " ".join(capsys.readouterr().out.split())
    # Segments of 22, 20, 22 and 8 tokens in chunks of 4: 24 + 20 + 24 + 8 tokens of 4 * 32 * 4 + 5 bytes.
    for text in (
        "samples 6",
        "tokens 72",
        "supervised tokens 43",
        "bytes before compression 39.3 kB",
        "free disk",
    ):
        assert text in shown
    assert "expected time (estimate)" in shown


def test_a_cache_that_does_not_fit_is_refused_before_it_starts(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(Target, "load", lambda *_: pytest.fail("the target was loaded"))
    with refused(CacheError, tmp_path, "39.3 kB", 39292, "1.0 kB", 1000):
        run(target_folder, tmp_path)
