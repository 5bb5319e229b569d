from pathlib import Path

import pytest
import tiny
import torch

from pipeline.config import TargetConfig
from pipeline.target.model import Target
from stages.cache import padded
from stages.cache.padded import Picker, answer_padded, decode
from stages.cache.source import Settings

PROMPTS = ["a", "what is it?", "zz" * 20, "", "hello there", "0123456789"]


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(
        TargetConfig(name="t", path=str(target_folder), dtype="float32", device="cpu"), taps=[0]
    )


def prompt_ids(text: str) -> list[int]:
    return [257, *tiny.tokenizer()(text)["input_ids"], 258]


def greedy() -> Picker:
    return Picker(Settings(1, 0.0), torch.Generator())


def generate(target: Target, ids: list[int], limit: int, **options) -> list[int]:
    """transformers' own loop on one sequence."""
    out = target.model.generate(
        torch.tensor([ids]), max_new_tokens=limit, do_sample=False, eos_token_id=list(target.eos), **options
    )
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("keep", [0.0, 0.875, 1.0])
def test_a_batch_equals_generate_on_each_alone(target: Target, monkeypatch: pytest.MonkeyPatch, keep: float):
    """Left padding and the rows that leave change no answer (keep 1: they leave at once; 0: never)."""
    monkeypatch.setattr(padded, "KEEP_SHARE", keep)
    prompts, limits = [prompt_ids(text) for text in PROMPTS], [40, 3, 40, 25, 40, 1]
    got = dict(decode(target, prompts, limits, greedy()))
    expected = [generate(target, ids, limit) for ids, limit in zip(prompts, limits, strict=True)]
    assert [got[row] for row in range(len(prompts))] == expected
    assert len({len(ids) for ids in expected}) > 2


def test_repetition_penalty_equals_generate(target: Target):
    """Also where padding (id 0) is a token of the vocabulary: it is no repetition."""
    picker = Picker(Settings(1, 0.0, repetition_penalty=1.7), torch.Generator())
    prompts = [prompt_ids(text) for text in PROMPTS]
    got = dict(decode(target, prompts, [20] * len(prompts), picker))
    expected = [generate(target, ids, 20, repetition_penalty=1.7) for ids in prompts]
    assert [got[row] for row in range(len(prompts))] == expected
    assert expected != [generate(target, ids, 20) for ids in prompts]


def test_sampling_follows_the_settings(target: Target):
    """top_k 1 is greedy at any temperature; draws at temperature 1 have the model's frequencies."""
    ids = prompt_ids("a")
    narrow = Picker(Settings(1, 2.0, top_k=1), torch.Generator().manual_seed(0))
    assert dict(decode(target, [ids], [10], narrow))[0] == generate(target, ids, 10)
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]]).expand(20_000, 4)
    picker = Picker(Settings(1, 1.0), torch.Generator().manual_seed(0))
    tokens = picker(torch.zeros(20_000, 1, dtype=torch.long), torch.zeros(20_000), logits)
    frequencies = tokens.bincount(minlength=4) / 20_000
    assert torch.allclose(frequencies, logits[0].softmax(-1), atol=0.01)


def test_answers_come_in_the_order_of_prompts(target: Target):
    prompts, seen = [prompt_ids(text) for text in PROMPTS], []
    generator = torch.Generator().manual_seed(0)
    got = answer_padded(target, prompts, [8] * len(prompts), Settings(8, 0.0), 2, generator, seen.append)
    assert got == [generate(target, ids, 8) for ids in prompts]
    assert sorted(seen) == sorted(map(len, got))
