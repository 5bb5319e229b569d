"""Answers prompts in padded batches, for targets that the batched engine cannot run.

Such targets (for example DeepSeek-V4) keep more than keys and values, or cap their attention scores. Prompts are
padded on the left, and finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from pipeline.decoding.sampling import Sampler
from pipeline.target.model import Target
from stages.cache.source import SHAPING, Settings

KEEP_SHARE = 0.875  # finished rows are dropped in groups, because each drop copies the whole KV cache


def answer_padded(
    target: Target,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    settings: Settings,
    batch_size: int,
    generator: torch.Generator,
    advance: Callable[[int], None],
) -> list[list[int]]:
    """The answer ids of every prompt, in order. Batches of ``batch_size`` start with the longest prompts."""
    picker = Picker(settings, generator)
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    answers: dict[int, list[int]] = {}
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        chosen = [prompts[number] for number in batch]
        for row, ids in decode(target, chosen, [limits[number] for number in batch], picker):
            advance(len(ids))
            answers[batch[row]] = ids
    return [answers[number] for number in range(len(prompts))]


class Picker:
    """Chooses the next token of every row: the most likely one, or a draw of the sampler that evaluation uses."""

    def __init__(self, settings: Settings, generator: torch.Generator) -> None:
        self.sampler = Sampler(**{name: value for name, value in asdict(settings).items() if name in SHAPING})
        self.penalty, self.generator = settings.repetition_penalty, generator

    def __call__(self, ids: Tensor, padding: Tensor, logits: Tensor) -> Tensor:
        """Next tokens, int64 [b], from ``logits`` [b, V] after ``ids`` [b, S], less their first ``padding`` [b]."""
        if self.penalty is not None:
            from transformers import RepetitionPenaltyLogitsProcessor

            process = RepetitionPenaltyLogitsProcessor(self.penalty, prompt_ignore_length=padding)
            logits = process(ids, logits.float())
        if self.sampler.greedy:
            return logits.argmax(-1)
        return self.sampler.draw(self.sampler.probabilities(logits), self.generator)


@torch.inference_mode()
def decode(
    target: Target, prompts: Sequence[Sequence[int]], limits: Sequence[int], picker: Picker
) -> Iterator[tuple[int, list[int]]]:
    """Answer ``prompts`` together. Yields (row, answer ids) when a row reaches its limit or an end token (kept)."""
    ids, mask = (tensor.to(target.device) for tensor in _pad_left(prompts))
    padding = (mask == 0).sum(-1)
    answers: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))  # the prompt of each row of the batch
    ended: set[int] = set()
    cache = target.new_cache()
    fresh, positions = ids, (mask.cumsum(-1) - 1).clamp(min=0)
    while True:
        states = target.run(fresh, attention_mask=mask, cache=cache, position_ids=positions)
        tokens = picker(ids, padding, target.logits(states.last_hidden[:, -1]))
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row in ended:
                continue
            answers[row].append(token)
            if token in target.eos or len(answers[row]) == limits[row]:
                ended.add(row)
                yield row, answers[row]
        if len(ended) == len(prompts):
            return
        ids = torch.cat([ids, tokens[:, None]], dim=1)
        mask = torch.cat([mask, torch.ones_like(tokens[:, None])], dim=1)
        positions = positions[:, -1:] + 1
        going = [place for place, row in enumerate(rows) if row not in ended]
        if len(going) <= KEEP_SHARE * len(rows):
            chosen = torch.tensor(going, device=target.device)
            cache.batch_select_indices(chosen)
            ids, mask, padding, positions = (tensor[chosen] for tensor in (ids, mask, padding, positions))
            rows = [rows[place] for place in going]
        fresh = ids[:, -1:]


def _pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, int64 [B, S], padded on the left to the longest prompt's length."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask
