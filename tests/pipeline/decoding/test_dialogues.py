"""Prompts answered together give the rows that each gives alone, but for the seconds."""

import dataclasses

import pytest
import tiny

from data_specs.evaluation import SCHEMA
from pipeline.config import TargetConfig
from pipeline.decoding.dialogue import Speaker
from pipeline.decoding.dialogues import answer_together, warm_up
from pipeline.decoding.sampling import Sampler
from pipeline.prompts.benchmarks import Prompt
from pipeline.target.model import Target

TIMES = ("draft_seconds", "verify_seconds")


def prompt(index, *texts):
    return Prompt("b", index, f"k{index}", [{"role": "user", "content": text} for text in texts])


PROMPTS = [
    prompt(0, "Hello.", "More."),
    prompt(1, "Why is the sky blue?"),
    prompt(2, "Count.", "On.", "And on."),
]


@pytest.fixture(scope="module")
def speaker(target_folder):
    config = TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu")
    return Speaker(
        target=Target.load(config, [0, 2]), draft=tiny.draft().eval(), tokenizer=tiny.tokenizer(),
        sampler=Sampler(), max_new_tokens=6, threshold=0.0, baseline=True, thinking=None, seed=0, batch=2,
    )  # fmt: skip


def exact(rows):
    """All of the rows that does not depend on rounding or time."""
    return [{key: value for key, value in row.items() if key not in (*TIMES, "confidences")} for row in rows]


def confidences(rows):
    return [c for row in rows for c in row["confidences"] or []]


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_rows_are_those_of_each_prompt_alone(speaker, threshold):
    """Dialogues of one, two and three turns; a calibrated threshold cuts the same chains."""
    speaker = dataclasses.replace(speaker, threshold=threshold, temperatures=(0.7, 1.3, 1, 1, 1, 1, 1))
    done: list[int] = []
    rows = answer_together(speaker, PROMPTS, lambda one: done.append(one.index))
    assert sorted(done) == [0, 1, 2]
    assert all(set(row) == set(SCHEMA.names) for row in rows)
    alone = [row for one in PROMPTS for row in speaker.answer(one)]
    assert exact(rows) == exact(alone)
    assert confidences(rows) == pytest.approx(confidences(alone), abs=1e-5)
    assert any(row["drafted"] for row in rows) and all(row["verify_seconds"] > 0 for row in rows)


def test_draws_repeat_with_the_seed(speaker):
    speaker = dataclasses.replace(speaker, sampler=Sampler(1.0), baseline=False)
    first, again = (answer_together(speaker, PROMPTS, lambda one: None) for _ in range(2))
    assert exact(first) == exact(again)
    other = answer_together(dataclasses.replace(speaker, seed=1), PROMPTS, lambda one: None)
    assert [row["tokens"] for row in other] != [row["tokens"] for row in first]


def test_a_prompt_that_is_too_long_has_no_rows(speaker):
    limit = speaker.target.config.max_position_embeddings
    done: list[int] = []
    rows = answer_together(speaker, [prompt(0, "x" * limit), PROMPTS[1]], lambda one: done.append(one.index))
    assert {row["prompt"] for row in rows} == {1}
    assert sorted(done) == [0, 1]


def test_warm_up_leaves_nothing_behind(speaker):
    assert warm_up(speaker, PROMPTS) is None
