"""Every file of conf/ composes, and comes to the values that it stands for."""

import pytest
from composing import CONF, composed


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name: str) -> None:
    assert composed(f"experiment={name}").stage.steps


@pytest.mark.parametrize("stage", ["cache", "train", "evaluate", "all", "list"])  # compare needs drafters
def test_every_stage_composes(stage: str) -> None:
    assert composed(f"stage={stage}").stage.name == stage


GROUPS = (
    "target", "data", "answers", "capture", "drafter", "train", "deepspeed", "evaluate", "study", "export", "tracking",
)  # fmt: skip
EXTRA = {"hf": ["target.path=somewhere"], "local": ["data.sources=[{path: a.jsonl}]"]}
OPTIONS = [(g, p.stem) for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]


@pytest.mark.parametrize("group,option", OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    extra = EXTRA.get(option, []) if group in ("target", "data") else []
    if (group, option) == ("answers", "openai"):
        extra = ["answers.openai.base_urls=[http://127.0.0.1:1/v1]"]
    config = composed(f"{group}={option}", *extra)
    assert getattr(config, group) is not None


def test_targets() -> None:
    assert composed("target=qwen3_4b").target.path == "Qwen/Qwen3-4B"
    assert composed("target=hf", "target.path=/models/mine").target.path == "/models/mine"


@pytest.mark.parametrize(
    "name,expected",
    [
        (
            "dspark",
            {"algorithm": "dspark", "markov_head": "vanilla", "markov_rank": 256, "confidence_head": True},
        ),
        (
            "dspark_gated",
            {"algorithm": "dspark", "name": "dspark_gated", "markov_head": "gated", "markov_rank": 256},
        ),
        ("dspark_rnn", {"algorithm": "dspark", "name": "dspark_rnn", "markov_head": "rnn", "depth": 5}),
        ("dflash", {"algorithm": "dflash", "block_size": 7, "markov_rank": 0, "sample_from_anchor": True}),
        ("dflash_fill_in", {"algorithm": "dflash", "block_size": 16, "sample_from_anchor": False}),
        (
            "eagle3",
            {"algorithm": "eagle3", "depth": 1, "family": None, "num_taps": None, "train_steps": None},
        ),
        ("eagle3_llama", {"algorithm": "eagle3", "family": "llama", "num_taps": 3, "depth": 1}),
        ("mtp", {"algorithm": "mtp", "depth": 1, "num_taps": 0, "train_steps": 1, "block_size": 7}),
    ],
)
def test_drafters(name: str, expected: dict) -> None:
    drafter = composed(f"drafter={name}").drafter
    assert {key: getattr(drafter, key) for key in expected} == expected


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "drafter").glob("*.yaml")))
def test_losses_of_the_drafters(name: str) -> None:
    """(cross-entropy, L1, confidence, soft) of the paper, of DFlash and MTP, of Eagle3."""
    tokens, soft = (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)
    expected = {"dspark": (0.1, 0.9, 1.0, 0.0), "dflash": tokens, "mtp": tokens, "eagle3": soft}
    drafter = composed(f"drafter={name}").drafter
    loss = drafter.loss
    assert (loss.ce, loss.l1, loss.confidence, loss.soft) == expected.get(drafter.algorithm, tokens)
