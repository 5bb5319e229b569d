"""The accept / reject arithmetic of speculative decoding, pure tensors.

Leviathan et al. 2023 (arXiv 2211.17192): a drafted token x is accepted with probability
min(1, p_t(x) / p_d(x)); the first rejection draws from norm(max(p_t - p_d, 0)). What comes out is
distributed as the target alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from data_specs.errors import UserError


class SamplerError(UserError):
    """A sampling parameter out of its range; the message names the field."""


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn from logits. Temperature 0: the mode. None: that truncation is off.

    Raises ``SamplerError`` naming the field for a temperature below 0, ``top_p`` outside (0, 1], ``top_k``
    below 1 or ``min_p`` outside [0, 1].
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "a finite number >= 0", math.isfinite(self.temperature))
        _check("temperature", self.temperature, "a finite number >= 0", self.temperature >= 0)
        _check("top_p", self.top_p, "a number in (0, 1]", self.top_p is None or 0 < self.top_p <= 1)
        _check("top_k", self.top_k, "an integer >= 1", self.top_k is None or self.top_k >= 1)
        _check("min_p", self.min_p, "a number in [0, 1]", self.min_p is None or 0 <= self.min_p <= 1)

    @property
    def greedy(self) -> bool:
        """Whether the mode is taken instead of a draw."""
        return self.temperature == 0

    def effective(self) -> dict[str, float | int | None]:
        """The parameters that act, for the record: at temperature 0 no truncation changes the mode."""
        return {"temperature": 0.0} if self.greedy else asdict(self)

    def probabilities(self, logits: Tensor) -> Tensor:
        """fp32 probabilities [..., V] of logits [..., V]; one-hot at temperature 0.

        Order as in Hugging Face generation: temperature, top_k, top_p, min_p, each on what is left.
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
        """One id int64 [...] a row of ``probabilities`` [..., V] (they need not sum to 1).

        Of V exponential variables with rates p, number i is smallest with probability p_i: argmax p / Exp(1).
        """
        if self.greedy:
            return probabilities.argmax(-1)
        noise = torch.empty_like(probabilities).exponential_(generator=generator)
        return (probabilities / noise.clamp_(min=torch.finfo(noise.dtype).tiny)).argmax(-1)


def accept(
    tokens: Tensor,
    draft_probabilities: Tensor | None,
    target_logits: Tensor,
    sampler: Sampler,
    generator: torch.Generator | None = None,
) -> tuple[int, int]:
    """How many of the drafted ``tokens`` int64 [n] hold, and the token after them: (accepted, next token).

    ``target_logits`` [n+1, V]: row i is the target's for drafted token i, row n for the bonus token.
    ``draft_probabilities`` fp32 [n, V] are those the tokens were drawn from; None means that the draft chose
    each token with certainty (always so at temperature 0, where they are not looked at).
    """
    if sampler.greedy:
        return _accept_greedy(tokens, target_logits)
    return _accept_sampled(
        tokens, draft_probabilities, sampler.probabilities(target_logits), sampler, generator
    )


def _accept_greedy(tokens: Tensor, target_logits: Tensor) -> tuple[int, int]:
    modes = target_logits.argmax(-1)  # [n+1]
    chosen, drafted = modes.tolist(), tokens.tolist()
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == chosen[accepted]:
        accepted += 1
    return accepted, chosen[accepted]


def _accept_sampled(
    tokens: Tensor, draft: Tensor | None, target: Tensor, sampler: Sampler, generator: torch.Generator | None
) -> tuple[int, int]:
    """``draft`` [n, V] or None, ``target`` [n+1, V] probabilities."""
    n = len(tokens)
    rows = torch.arange(n, device=target.device)
    p_draft = target.new_ones(n) if draft is None else draft[rows, tokens]  # [n]
    coins = torch.rand(n, device=target.device, generator=generator)
    holds = coins * p_draft < target[rows, tokens]  # never where p_t = 0, always where p_t >= p_d
    accepted = int(holds.long().cumprod(0).sum())
    weights = target[accepted]
    if accepted < n:
        weights = _residual(target[accepted], None if draft is None else draft[accepted], tokens[accepted])
    return accepted, int(sampler.draw(weights, generator))


def _residual(target: Tensor, draft: Tensor | None, token: Tensor) -> Tensor:
    """max(p_t - p_d, 0) [V], not normalised. Where rounding leaves no mass the two are equal: p_t itself."""
    rest = target.index_fill(0, token, 0.0) if draft is None else (target - draft).clamp_(min=0)
    return rest if bool(rest.sum() > 0) else target


def _keep_top_k(scores: Tensor, k: int) -> Tensor:
    """Scores [..., V] with all below the k-th largest at -inf (ties with it stay)."""
    smallest = scores.topk(min(k, scores.shape[-1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < smallest, -math.inf)


def _keep_top_p(scores: Tensor, p: float) -> Tensor:
    """Scores [..., V] of the smallest set of likely tokens whose mass reaches ``p``; the others at -inf."""
    ordered, order = scores.sort(-1, descending=True)
    mass = ordered.softmax(-1)
    beyond = mass.cumsum(-1) - mass >= p  # mass before this token already reaches p; never the first
    return scores.masked_fill(torch.empty_like(beyond).scatter_(-1, order, beyond), -math.inf)


def _check(field: str, value: float | None, expected: str, holds: bool) -> None:
    if not holds:
        raise SamplerError(f"sampler field {field}: expected {expected}, got {value!r}")
