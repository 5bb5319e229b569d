"""Turns, histories, seeds and rows of one prompt."""

import dataclasses

import pytest
import tiny
import tiny_templates as templates
from tiny_errors import refused

from data_specs.evaluation import SCHEMA
from pipeline.config import ConfigError, TargetConfig
from pipeline.decoding.dialogue import Dialogue, Speaker
from pipeline.decoding.sampling import Sampler
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.chat import render_prompt
from pipeline.target.model import Target

PROMPT = Prompt("b", 3, "k", [{"role": "user", "content": "Hello."}, {"role": "user", "content": "More."}])


@pytest.fixture(scope="module")
def speaker(target_folder):
    config = TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu")
    return Speaker(
        target=Target.load(config, [0, 2]), draft=tiny.draft().eval(), tokenizer=tiny.tokenizer(),
        sampler=Sampler(1.0), max_new_tokens=6, threshold=0.0, baseline=True, thinking=None, seed=0,
    )  # fmt: skip


def answer_of(rows, turn, mode):
    found = [row for row in rows if (row["turn"], row["mode"]) == (turn, mode)]
    return [token for row in found for token in row["tokens"]]


def test_rows_have_the_columns_of_the_table(speaker):
    rows = speaker.answer(PROMPT)
    assert all(set(row) == set(SCHEMA.names) for row in rows)
    assert {(row["benchmark"], row["prompt"], row["key"]) for row in rows} == {("b", 3, "k")}
    assert {(row["turn"], row["mode"]) for row in rows} == {
        (t, m) for t in (0, 1) for m in ("draft", "plain")
    }
    for turn in (0, 1):
        for mode in ("draft", "plain"):
            part = [row for row in rows if (row["turn"], row["mode"]) == (turn, mode)]
            assert [row["round"] for row in part] == list(range(len(part)))
            assert [row["finish"] is not None for row in part] == [False] * (len(part) - 1) + [True]
            assert sum(row["emitted"] for row in part) == len(answer_of(rows, turn, mode)) <= 6


def test_a_prompts_tools_stand_before_every_turn(speaker):
    tools = [{"type": "function", "function": {"name": "look"}}]
    asking = dataclasses.replace(speaker, tokenizer=templates.tokenizer(templates.CALLS_OBJECT))
    dialogue = Dialogue(asking, dataclasses.replace(PROMPT, tools=tools))
    first = dialogue.ask()
    dialogue.follow(asking.tokenizer("yes")["input_ids"])
    asked = [asking.tokenizer.decode(turn.ids) for turn in (first, dialogue.ask())]
    assert asked[0] == "[look]<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n"
    assert asked[1].startswith("[look]") and asked[1].endswith("More.<|im_end|>\n<|im_start|>assistant\n")


def test_the_history_holds_the_targets_answer(speaker):
    """The second turn follows what the target said to the first; both ways decode the same ids."""
    rows = speaker.answer(PROMPT)
    said = speaker.tokenizer.decode(answer_of(rows, 0, "draft"), skip_special_tokens=True)
    history = [PROMPT.messages[0], {"role": "assistant", "content": said}, PROMPT.messages[1]]
    expected = len(render_prompt(speaker.tokenizer, history, None))
    starts = {row["mode"]: row["context"] for row in rows if row["turn"] == 1 and row["round"] == 0}
    assert starts == {"draft": expected, "plain": expected}


def test_draws_repeat_with_the_seed_and_differ_between_prompts(speaker):
    first, second = speaker.answer(PROMPT), speaker.answer(PROMPT)
    assert answer_of(first, 0, "draft") == answer_of(second, 0, "draft")
    assert answer_of(first, 0, "plain") == answer_of(second, 0, "plain")
    others = [
        dataclasses.replace(speaker, seed=1).answer(PROMPT),
        speaker.answer(dataclasses.replace(PROMPT, index=4)),
    ]
    for other in others:
        assert answer_of(other, 0, "draft") != answer_of(first, 0, "draft")


def test_without_baseline(speaker):
    rows = dataclasses.replace(speaker, baseline=False).answer(PROMPT)
    assert {row["mode"] for row in rows} == {"draft"}


def test_the_context_limits_the_answer_and_ends_the_dialogue(speaker):
    """A prompt that leaves room for 3 tokens gets 3; the next turn has no room and is not asked."""
    limit = speaker.target.config.max_position_embeddings
    empty = len(render_prompt(speaker.tokenizer, [{"role": "user", "content": ""}], None))
    long = [{"role": "user", "content": "x" * (limit - empty - 3)}, PROMPT.messages[1]]
    rows = dataclasses.replace(speaker, sampler=Sampler()).answer(Prompt("b", 0, "k", long))
    assert {row["turn"] for row in rows} == {0}
    assert len(answer_of(rows, 0, "draft")) == 3
    too_long = [{"role": "user", "content": "x" * (limit - empty)}]
    assert speaker.answer(Prompt("b", 0, "k", too_long)) == []


def test_a_template_that_refuses_names_the_prompt(speaker):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with refused(ConfigError, "benchmark b", "prompt 3", "no system role"):
        dataclasses.replace(speaker, tokenizer=tokenizer).answer(PROMPT)


def test_warm_up_measures_plain_tokens(speaker):
    assert 0 < speaker.warm_up(PROMPT) < 5


def test_an_answer_that_was_cut_inside_its_reasoning_ends_the_dialogue(speaker):
    dialogue = Dialogue(speaker, PROMPT)
    assert dialogue.ask().number == 0
    dialogue.follow(speaker.tokenizer("<think>\nhm", add_special_tokens=False)["input_ids"])
    assert dialogue.ask() is None


def test_the_history_tells_reasoning_and_answer_apart(speaker):
    """Without its marks the reasoning would run into the answer."""
    dialogue = Dialogue(speaker, PROMPT)
    assert dialogue.ask().number == 0
    dialogue.follow(speaker.tokenizer("<think>\nhm\n</think>\n\nyes", add_special_tokens=False)["input_ids"])
    asked = speaker.tokenizer.decode(dialogue.ask().ids)
    assert "<|im_start|>assistant\nyes<|im_end|>" in asked and "hm" not in asked
