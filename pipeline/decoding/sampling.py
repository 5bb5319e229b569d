"""The accept / reject arithmetic of speculative decoding, on tensors only.

Leviathan et al. 2023 (arXiv 2211.17192): a drafted token x is accepted with probability min(1, p_t(x) / p_d(x)). The
first rejection draws from norm(max(p_t - p_d, 0)). The result is distributed as the target alone. This also holds if
the draft proposes its mode while the target samples: p_d is then one-hot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

import torch
from torch import Tensor

from pipeline.config.rules import DraftSampling, MinP, Temperature, TopK, TopP, check_fields


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn from logits. At temperature 0 it is the mode. None turns a truncation off.

    Raises ``ConfigError`` naming a field outside its range (pipeline/config/rules.py).
    """

    temperature: Temperature = 0.0
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    draft_sampling: DraftSampling = "target"  # greedy: the draft proposes its mode at any temperature

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def of_draft(self) -> Sampler:
        """How the draft chooses its tokens; ``accept_all`` makes either choice lossless."""
        return Sampler() if self.draft_sampling == "greedy" else self

    @property
    def greedy(self) -> bool:
        """Whether the mode is taken and nothing is drawn."""
        return self.temperature == 0

    def effective(self) -> dict[str, float | int | str | None]:
        """The parameters that have an effect: at temperature 0 only the temperature."""
        return {"temperature": 0.0} if self.greedy else asdict(self)

    def probabilities(self, logits: Tensor) -> Tensor:
        """fp32 probabilities [..., V] of logits [..., V]; one-hot at temperature 0.

        The order is that of Hugging Face: temperature, top_k, top_p, min_p, each applied to the remaining tokens.
        """
        if self.greedy:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        scores = logits.float() / self.temperature
        if self.top_k is not None:
            scores = _keep_top_k(scores, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            scores = _keep_top_p(scores, self.top_p)
        if self.min_p:
            probabilities = scores.softmax(-1)
            floor = self.min_p * probabilities.amax(-1, keepdim=True)
            scores = scores.masked_fill(probabilities < floor, -math.inf)
        return scores.softmax(-1)

    def draw(self, probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """One id int64 [...] for each row of ``probabilities`` [..., V], which need not sum to 1.

        Of V exponential variables with rates p, number i is the smallest with probability p_i: argmax p / Exp(1).
        """
        if self.greedy:
            return probabilities.argmax(-1)
        noise = torch.empty_like(probabilities).exponential_(generator=generator)
        return (probabilities / noise.clamp_(min=torch.finfo(noise.dtype).tiny)).argmax(-1)


def accept(
    tokens: Tensor, draft_probabilities: Tensor | None, target_logits: Tensor, sampler: Sampler,
    generator: torch.Generator | None = None,
) -> tuple[int, int]:  # fmt: skip
    """``accept_all`` for one chain of drafted ``tokens`` int64 [n]: (accepted, next token)."""
    counts = [len(tokens)]
    accepted, following = accept_all(tokens, counts, draft_probabilities, target_logits, sampler, generator)
    return accepted[0], following[0]


def accept_all(
    tokens: Tensor, counts: Sequence[int], draft_probabilities: Tensor | None, target_logits: Tensor, sampler: Sampler,
    generator: torch.Generator | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """(accepted [R], next tokens [R]): how many drafts of each of R chains are accepted, and the token after them.

    ``tokens`` int64 [N] are the chains of ``counts`` [R] tokens in a row. ``target_logits`` [N+R, V] has n+1 rows for
    each chain: row i is for its drafted token i, and row n for the bonus token. The tokens were drawn from
    ``draft_probabilities`` fp32 [N, V]. None means that the draft chose each token with certainty: it is accepted with
    probability p_t, and a rejection draws from p_t without it. Temperature 0 does not use the probabilities.
    """
    if sampler.greedy:
        return _accept_greedy(tokens.tolist(), counts, target_logits.argmax(-1).tolist())
    target = sampler.probabilities(target_logits)
    return _accept_sampled(tokens, counts, draft_probabilities, target, sampler, generator)


def _accept_greedy(
    drafted: list[int], counts: Sequence[int], modes: list[int]
) -> tuple[list[int], list[int]]:
    """``modes`` [N+R] are the target's choices."""
    accepted, following, first = [], [], 0
    for r, count in enumerate(counts):
        held = 0
        while held < count and drafted[first + held] == modes[first + r + held]:
            held += 1
        accepted.append(held)
        following.append(modes[first + r + held])
        first += count
    return accepted, following


def _accept_sampled(
    tokens: Tensor, counts: Sequence[int], draft: Tensor | None, target: Tensor, sampler: Sampler,
    generator: torch.Generator | None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """``draft`` [N, V] or None, ``target`` [N+R, V] probabilities."""
    device, total = target.device, len(tokens)
    starts = list(accumulate(counts, initial=0))[:-1]  # of each chain in ``tokens``
    chain = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(device)  # [N]
    drafts = torch.arange(total, device=device)
    rows = drafts + chain  # of the target, for each draft
    p_draft = target.new_ones(total) if draft is None else draft[drafts, tokens]
    coins = torch.rand(total, device=device, generator=generator)
    holds = (coins * p_draft < target[rows, tokens]).tolist()  # never where p_t = 0, always where p_t >= p_d
    accepted = [(holds[s : s + n] + [False]).index(False) for s, n in zip(starts, counts, strict=True)]
    weights = target[[s + r + n for r, (s, n) in enumerate(zip(starts, accepted, strict=True))]]  # [R, V]
    cut = [r for r, n in enumerate(accepted) if n < counts[r]]
    if cut:
        at = [starts[r] + accepted[r] for r in cut]
        weights[cut] = _residual(weights[cut], None if draft is None else draft[at], tokens[at])
    return accepted, sampler.draw(weights, generator).tolist()


def _residual(target: Tensor, draft: Tensor | None, tokens: Tensor) -> Tensor:
    """max(p_t - p_d, 0) [r, V], not normalised; p_t where rounding leaves no mass, because the two are equal there."""
    rest = target.scatter(1, tokens[:, None], 0.0) if draft is None else (target - draft).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, target)


def _keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Scores [..., V] with -inf below the k-th largest; ties with it stay."""
    smallest = scores.topk(min(k, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < smallest, -math.inf)


def _keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Scores [..., V] with -inf outside the smallest set of likely tokens whose mass reaches ``p``."""
    ordered, order = scores.sort(-1, descending=True)
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= p  # mass before this token already reaches p; never the first
    return scores.masked_fill(torch.empty_like(beyond).scatter_(-1, order, beyond), -math.inf)
