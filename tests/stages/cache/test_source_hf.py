from pathlib import Path

import pytest
import tiny
import torch

from pipeline.config import ConfigError, TargetConfig
from pipeline.prompts.rows import Rejection
from pipeline.target.model import Target
from stages.cache.source import AnswerReply, AnswerRequest, Settings
from stages.cache.source_hf import HfSource, check_settings

PROMPTS = ["a", "what is it?", "zz" * 20, "", "hello there", "0123456789"]


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(
        TargetConfig(name="t", path=str(target_folder), dtype="float32", device="cpu"), taps=[0]
    )


def prompt_ids(text: str) -> list[int]:
    return [257, *tiny.tokenizer()(text)["input_ids"], 258]


def generate(target: Target, ids: list[int], limit: int, **options) -> list[int]:
    """transformers' own loop on one sequence."""
    out = target.model.generate(
        torch.tensor([ids]), max_new_tokens=limit, do_sample=False, eos_token_id=list(target.eos), **options
    )
    return out[0, len(ids) :].tolist()


def requests(limit: int) -> list[AnswerRequest]:
    return [AnswerRequest([{"role": "user", "content": text}], prompt_ids(text), limit) for text in PROMPTS]


def test_an_end_token_is_kept_and_ends_the_row(target: Target, monkeypatch: pytest.MonkeyPatch):
    """Multi-EOS: whichever comes first. The tokens that greedy decoding makes are declared to be the ends."""
    plain = generate(target, prompt_ids("a"), 12)
    ends = (plain[7], plain[4])
    first = min(plain.index(ends[0]), plain.index(ends[1]))
    monkeypatch.setattr(target, "eos", ends)
    engine = HfSource(target, tiny.tokenizer(), Settings(12, 0.0), 4)
    request = AnswerRequest([], prompt_ids("a"), 12)
    (reply,) = engine.answer([request], 0, lambda tokens: None)
    assert isinstance(reply, AnswerReply)
    assert (reply.finish_reason, reply.answer_ids) == ("stop", plain[: first + 1])
    assert reply.message["content"] == tiny.tokenizer().decode(plain[:first], skip_special_tokens=True)


def test_replies_come_in_the_order_of_requests(target: Target):
    """Sorted by length inside, whatever the batch size; tokens are reported once."""
    seen: list[int] = []
    engine = HfSource(target, tiny.tokenizer(), Settings(8, 0.0), 2)
    replies = engine.answer(requests(8), 0, seen.append)
    assert not any(isinstance(reply, Rejection) for reply in replies)
    assert [reply.prompt_ids for reply in replies] == [prompt_ids(text) for text in PROMPTS]
    assert [reply.answer_ids for reply in replies] == [
        generate(target, prompt_ids(text), 8) for text in PROMPTS
    ]
    assert sorted(seen) == sorted(len(reply.answer_ids) for reply in replies)
    assert {reply.finish_reason for reply in replies} <= {"stop", "length"}


def test_sampling_repeats_with_the_seed_and_only_then(target: Target):
    engine = HfSource(target, tiny.tokenizer(), Settings(20, 1.5), 3)
    runs = [
        [r.answer_ids for r in engine.answer(requests(20), seed, lambda tokens: None)] for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("slots", [1, 2, 6])
def test_the_engine_equals_generate_on_each_alone(target: Target, slots: int):
    """Answers of different lengths in fewer slots than prompts, with and without a repetition penalty."""
    limits = [40, 3, 40, 25, 40, 1]
    asked = [AnswerRequest([], prompt_ids(text), limit) for text, limit in zip(PROMPTS, limits, strict=True)]
    for penalty in (None, 1.7):
        options = {} if penalty is None else {"repetition_penalty": penalty}
        engine = HfSource(target, tiny.tokenizer(), Settings(40, 0.0, repetition_penalty=penalty), slots)
        replies = engine.answer(asked, 0, lambda tokens: None)
        expected = [generate(target, r.prompt_ids, r.limit, **options) for r in asked]
        assert [reply.answer_ids for reply in replies] == expected


def test_a_target_that_the_engine_cannot_run_is_answered_in_padded_batches(
    target: Target, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("stages.cache.source_hf.supports", lambda target: False)
    monkeypatch.setattr("stages.cache.source_hf.Engine", None)
    replies = HfSource(target, tiny.tokenizer(), Settings(8, 0.0), 2).answer(
        requests(8), 0, lambda tokens: None
    )
    assert [reply.answer_ids for reply in replies] == [
        generate(target, prompt_ids(text), 8) for text in PROMPTS
    ]


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_without_a_processor_are_refused_by_name(name: str):
    """Pitfall 14: never sent as something else."""
    with pytest.raises(ConfigError, match=f"answers.{name}"):
        check_settings(Settings(1, 0.0, **{name: 0.5}))
