"""The engine against its own replay, in fp32: every step the same, whatever the schedule."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.config import TargetConfig
from pipeline.decoding.batched import Engine
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.scheduler import StepRate, policy
from pipeline.drafts.folders.checkpoint import load
from pipeline.target.model import Target
from stages.study.costs import Curve, Surface, TableCosts
from stages.study.points import requests
from stages.study.pool import record
from stages.study.simulation import Pool, answer_of_rounds, cycle, simulate

GOLDEN = Path(__file__).parents[2] / "golden" / "qwen3_dspark_decode"
PROMPTS = [tuple(t["prompt"]) for t in json.loads((GOLDEN / "expected.json").read_text())[:6]]
LIMIT, SLOTS, COUNT = 24, 3, 8
UNIT = TableCosts(
    Surface({1: Curve.of([(1, 1.0)])}), None, Curve.of([(1, 1.0)]), schedule=Curve.of([(1, 0.0)])
)
RATE = StepRate(1 / (1 + 0.05 * np.arange(1, 100)))


@pytest.fixture(scope="module")
def served():
    """An engine by its policy, its answers with whole chains by number, and what was recorded along them."""
    draft = load(GOLDEN / "draft")
    config = TargetConfig(name="golden", path=str(GOLDEN / "target"), dtype="float32", device="cpu")
    target = Target.load(config, taps=draft.config.target_layer_ids)

    def engine(chosen, drafts: int) -> Engine:
        used = draft if drafts else None
        return Engine(target, used, Sampler(), chosen, SLOTS, 64, drafts=drafts, prefill_tokens=10)

    done = sorted(engine(None, 7).serve(requests(PROMPTS, 6, LIMIT)), key=lambda one: one.request.number)
    return engine, done, record(target, draft, PROMPTS, [one.answer for one in done], LIMIT)


def test_what_the_rounds_of_a_decoding_saw_is_what_was_recorded_there(served) -> None:
    _, done, recorded = served
    for prompt, one, answer in zip(PROMPTS, done, recorded, strict=True):
        assert answer.length == len(one.answer) and answer.prompt == len(prompt)
        out = 1
        for r in one.rounds[1:]:
            assert min(answer.held[out - 1], r.drafted) == r.accepted
            assert answer.confidences[out - 1, : r.drafted] == pytest.approx(r.confidences, abs=1e-4)
            out += len(r.tokens)
    assert sum(answer.held.sum() for answer in recorded) > 40, "there is something to tell"


def counts(steps):
    return [(s.requests, s.context, s.drafted, s.verified, s.accepted, s.emitted, s.prefilled) for s in steps]


@pytest.mark.parametrize("name", ["plain", "fixed", "threshold", "algorithm_1", "asynchronous"])
def test_a_replay_takes_the_very_steps_of_the_engine(served, name: str) -> None:
    engine, _, recorded = served

    def chosen():
        return None if name in ("plain", "fixed") else policy(name, RATE, least=0.5)

    drafts = {"plain": 0, "fixed": 2}.get(name, 7)
    real = engine(chosen(), drafts)
    for _ in real.serve(requests(PROMPTS, COUNT, LIMIT)):
        pass
    pool = Pool.of(recorded)
    replay = simulate(pool, cycle(pool, COUNT), UNIT, chosen(), SLOTS, drafts, prefill_tokens=10)
    assert counts(replay.steps) == counts(real.steps)


def test_a_pool_of_rounds_has_the_answers_lengths(served) -> None:
    """Of sampled answers: positions between the rounds are filled in."""
    _, done, recorded = served
    filled = [answer_of_rounds(len(p), LIMIT, one.rounds, 7) for p, one in zip(PROMPTS, done, strict=True)]
    assert [a.length for a in filled] == [a.length for a in recorded]
