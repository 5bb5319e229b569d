"""What a comparison is said to take before it is made."""

from types import SimpleNamespace

import pytest
import tiny

from pipeline.config import Config, EvaluateConfig
from stages.compare import plan
from stages.compare.plan import Cost, decoded_tokens, show_plan, token_seconds
from stages.compare.variants import Comparison, Variant


def config_of(**evaluate):
    values = {"benchmarks": ["gsm8k", "mt_bench"], "prompts": 3, "max_new_tokens": 10, "baseline": False}
    return Config(evaluate=EvaluateConfig(**(values | evaluate)), target=tiny.located("there"))


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [({}, 60), ({"baseline": True}, 120), ({"prompts": None}, 0), ({"benchmarks": []}, 0)],
)
def test_tokens_that_an_evaluation_decodes_at_most(changes, tokens):
    """How many prompts there are is not known before they are read."""
    assert decoded_tokens(config_of(**changes)) == tokens


def test_a_plan_has_a_line_a_variant_and_the_sums(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plan, "token_seconds", lambda target: 0.5)
    variants = {
        "markov": Variant("markov", (), config_of()),
        "flat": Variant("flat", (), config_of(baseline=True)),
    }
    costs = {"markov": Cost(1200, 90.0, 3_000_000), "flat": Cost(800, 30.0, 1_000_000)}
    show_plan(config_of(), Comparison(variants, {}, {}), costs, tmp_path / "not" / "there")
    shown = capsys.readouterr().out
    rows = {words[0]: words[1:] for line in shown.splitlines() if (words := line.split())}
    assert rows["markov"] == ["1,200", "1", "min", "30", "s", "30", "s", "3.0", "MB"]
    assert rows["flat"][:1] == ["800"] and rows["flat"][-2:] == ["1.0", "MB"]
    said = " ".join(shown.split())
    for part in (
        "2,000 steps",
        "2 min 00 s",
        "1 min 30 s",
        "500 ms",
        "4.0 MB",
    ):
        assert part in said, said
    assert not (tmp_path / "not").exists()


def test_a_token_is_timed_after_the_context(target_folder, monkeypatch):
    """The passes after the first one are timed, one token each."""
    asked, clock = [], iter([10.0, 14.0])
    load = plan.Target.load

    def loaded(target):
        model = load(target)
        run = model.run
        monkeypatch.setattr(
            model, "run", lambda ids, cache: asked.append(ids.shape[1]) or run(ids, cache=cache)
        )
        return model

    monkeypatch.setattr(plan, "Target", SimpleNamespace(load=loaded))
    monkeypatch.setattr(plan.time, "perf_counter", lambda: next(clock))
    assert token_seconds(tiny.located(target_folder)) == 0.5  # four seconds, eight tokens
    assert asked == [64, *[1] * 8]
