"""Truncation, draws, and the accept / reject arithmetic against exact distributions."""

import math

import pytest
import torch
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.decoding.sampling import Sampler, accept, accept_all

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def p_value(counts, expected):
    """Chi-square goodness of fit: upper tail with (cells - 1) degrees of freedom."""
    keep = expected > 0
    assert int(counts[~keep].sum()) == 0
    statistic = ((counts[keep] - expected[keep]) ** 2 / expected[keep]).sum()
    return float(torch.special.gammaincc((keep.sum() - 1) / 2.0, statistic / 2))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": 0},
        {"min_p": -0.5},
    ],
)
def test_bad_fields_are_named(settings):
    ((field, value),) = settings.items()
    with refused(ConfigError, field, value):
        Sampler(**settings)


def test_effective_sampler():
    """At temperature 0 truncation does nothing, and is not said to act (pitfall 40)."""
    assert Sampler(0.0, top_p=0.9).effective() == {"temperature": 0.0}
    said = {"temperature": 0.7, "top_p": None, "top_k": 20, "min_p": None, "draft_sampling": "target"}
    assert Sampler(0.7, top_k=20).effective() == said


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (Sampler(0.0), [1.0, 0.0, 0.0, 0.0]),
        (Sampler(1.0), [0.5, 0.25, 0.15, 0.1]),
        (Sampler(0.5), [0.25, 0.0625, 0.0225, 0.01]),  # squares, to be normalised
        (Sampler(1.0, top_k=2), [0.5, 0.25, 0.0, 0.0]),
        (Sampler(1.0, top_k=9), [0.5, 0.25, 0.15, 0.1]),
        (Sampler(1.0, top_p=0.7), [0.5, 0.25, 0.0, 0.0]),
        (Sampler(1.0, top_p=0.8), [0.5, 0.25, 0.15, 0.0]),
        (Sampler(1.0, top_p=0.01), [1.0, 0.0, 0.0, 0.0]),
        (Sampler(1.0, min_p=0.4), [0.5, 0.25, 0.0, 0.0]),
        # top_p acts on what top_k left: 0.5 / 0.75 = 0.67 does not reach 0.7, so both stay.
        (Sampler(1.0, top_k=2, top_p=0.7), [0.5, 0.25, 0.0, 0.0]),
        (Sampler(1.0, top_k=2, top_p=0.6), [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_probabilities(sampler, expected):
    expected = torch.tensor(expected)
    got = sampler.probabilities(LOGITS)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected / expected.sum())


def test_probabilities_of_bf16_logits_are_fp32():
    got = Sampler(1.0).probabilities(torch.randn(3, 5).bfloat16())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.sum(-1), torch.ones(3))


@pytest.mark.parametrize(
    "sampler", [Sampler(1.0, top_k=2, top_p=0.9), Sampler(0.8, min_p=0.2), Sampler(1.3, top_p=0.5)]
)
def test_probabilities_equal_those_of_transformers(sampler):
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(6, 40, generator=generator())
    scores = TemperatureLogitsWarper(sampler.temperature)(None, logits)
    if sampler.top_k:
        scores = TopKLogitsWarper(sampler.top_k)(None, scores)
    if sampler.top_p:
        scores = TopPLogitsWarper(sampler.top_p)(None, scores)
    if sampler.min_p:
        scores = MinPLogitsWarper(sampler.min_p)(None, scores)
    torch.testing.assert_close(sampler.probabilities(logits), scores.softmax(-1))


def test_draws_follow_the_probabilities():
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    drawn = Sampler(1.0).draw(probabilities.expand(20_000, 4), generator())
    counts = torch.bincount(drawn, minlength=4).double()
    assert p_value(counts, probabilities.double() * 20_000) > 0.001


def test_draws_repeat_with_the_seed():
    probabilities = torch.full((50, 7), 1 / 7)
    first, second = (Sampler(1.0).draw(probabilities, generator(s)) for s in (3, 3))
    assert torch.equal(first, second)
    assert not torch.equal(first, Sampler(1.0).draw(probabilities, generator(4)))


# --- accept -----------------------------------------------------------------------------------------------


def logits_of(*modes, size=6):
    """Logits [n, V] whose modes are ``modes``."""
    return torch.nn.functional.one_hot(torch.tensor(modes), size).float()


@pytest.mark.parametrize(
    ("tokens", "modes", "expected"),
    [
        ([], [4], (0, 4)),
        ([1, 2, 3], [1, 2, 3, 5], (3, 5)),  # full block: the bonus token
        ([1, 2, 3], [1, 4, 3, 5], (1, 4)),  # a later agreement does not count
        ([1, 2, 3], [0, 2, 3, 5], (0, 0)),
    ],
)
def test_greedy_accept(tokens, modes, expected):
    got = accept(torch.tensor(tokens, dtype=torch.long), None, logits_of(*modes), Sampler())
    assert got == expected


def test_certain_drafts_are_accepted_and_the_bonus_is_drawn():
    """p_t = 1 at every drafted token: all hold, whatever the draft's probabilities were."""
    target = logits_of(1, 2, 5) * 1000
    draft = torch.full((2, 6), 1 / 6)
    assert accept(torch.tensor([1, 2]), draft, target, Sampler(1.0), generator()) == (2, 5)


def test_a_token_impossible_for_the_target_is_never_accepted():
    """p_t = 0: rejected for every coin, also a coin of exactly 0; and never resampled."""
    target = logits_of(3, 3) * 1000
    for seed in range(200):
        assert accept(torch.tensor([1]), logits_of(1), target, Sampler(1.0), generator(seed)) == (0, 3)


def test_residual_without_mass_falls_back_to_the_target():
    """The draft covers the target entirely (rounding can do that): max(p_t - p_d, 0) is empty."""
    draft = torch.tensor([[0.5, 0.5, 0.0]]) * 1.001
    target = torch.log(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    seen = {accept(torch.tensor([0]), draft * 2, target, Sampler(1.0), generator(s)) for s in range(100)}
    assert seen == {(1, 2), (0, 0), (0, 1)}


@pytest.mark.parametrize("certain", [False, True])
def test_first_token_is_distributed_as_the_target(certain):
    """Of draft ~ p_d and accept: the emitted first token follows p_t (Leviathan et al., appendix A.1)."""
    p_target = torch.tensor([0.4, 0.1, 0.25, 0.05, 0.2])
    p_draft = torch.tensor([0.1, 0.5, 0.25, 0.15, 0.0])
    sampler, random = Sampler(1.0), generator(7)
    logits = torch.log(torch.stack([p_target, p_target]))
    counts = torch.zeros(5, dtype=torch.double)
    for _ in range(4000):
        token = torch.tensor([1]) if certain else sampler.draw(p_draft[None], random)
        accepted, following = accept(token, None if certain else p_draft[None], logits, sampler, random)
        counts[int(token) if accepted else following] += 1
    assert p_value(counts, p_target.double() * 4000) > 0.001


def test_acceptance_probability_is_the_overlap():
    """P(accept) = sum min(p_t, p_d) = 1 - TV = 0.1 + 0.1 + 0.25 + 0.05 + 0 = 0.5."""
    p_target = torch.tensor([0.4, 0.1, 0.25, 0.05, 0.2])
    p_draft = torch.tensor([0.1, 0.5, 0.25, 0.15, 0.0])
    sampler, random = Sampler(1.0), generator(11)
    logits = torch.log(torch.stack([p_target, p_target]))
    accepted = sum(
        accept(sampler.draw(p_draft[None], random), p_draft[None], logits, sampler, random)[0]
        for _ in range(4000)
    )
    assert abs(accepted / 4000 - 0.5) < 4 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize("sampler", [Sampler(0.0), Sampler(1.0)])
def test_chains_are_accepted_together_as_each_alone(sampler):
    """Chains of 2, 0 and 3 drafts; sampled, the target puts all its mass on one token, so that no draw matters."""
    modes = [1, 2, 0, 3, 2, 1, 0, 3]  # of the 3 + 1 + 4 rows
    logits = torch.full((8, 4), -1e9).scatter(1, torch.tensor(modes)[:, None], 0.0)
    tokens = torch.tensor([1, 3, 2, 1, 3])
    draft = torch.full((5, 4), 0.25)
    assert accept_all(tokens, [2, 0, 3], draft, logits, sampler, generator()) == ([1, 0, 2], [2, 3, 0])
    alone = [
        (tokens[:2], draft[:2], logits[:3]),
        (tokens[:0], draft[:0], logits[3:4]),
        (tokens[2:], draft[2:], logits[4:]),
    ]
    assert [accept(*part, sampler, generator()) for part in alone] == [(1, 2), (0, 3), (2, 0)]
