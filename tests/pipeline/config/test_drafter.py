import pytest
from composing import CONF, accepted, composed, lacking, out_of_range, refusal

from pipeline.config import DrafterConfig, section


def test_defaults():
    assert section(DrafterConfig("mine", "dspark")) == {
        "name": "mine", "algorithm": "dspark", "family": None, "block_size": 7, "depth": 5, "num_taps": None,
        "sliding_window": None, "rope_scaling": None, "vocab_size": None, "sample_from_anchor": True,
        "markov_rank": 256, "markov_head": "vanilla", "learned_start": False, "confidence_head": True,
        "confidence_label": "soft", "train_steps": None,
        "loss": {
            "ce": 0.1, "l1": 0.9, "confidence": 1.0, "soft": 0.0, "decay": None, "ce_start": None,
            "l1_start": None, "confidence_start": None, "ramp": [0.0, 0.0], "chunk_slots": 512,
        },
        "init": {"final_norm": False, "layers": False, "bigram": None, "draft": None},
    }  # fmt: skip


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
def test_drafters(name: str, expected: dict):
    drafter = composed(f"drafter={name}").drafter
    assert {key: getattr(drafter, key) for key in expected} == expected


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "drafter").glob("*.yaml")))
def test_losses_of_the_drafters(name: str):
    """(cross-entropy, L1, confidence, soft) of the paper, of DFlash and MTP, of Eagle3."""
    tokens, soft = (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0)
    expected = {"dspark": (0.1, 0.9, 1.0, 0.0), "dflash": tokens, "mtp": tokens, "eagle3": soft}
    drafter = composed(f"drafter={name}").drafter
    loss = drafter.loss
    assert (loss.ce, loss.l1, loss.confidence, loss.soft) == expected.get(drafter.algorithm, tokens)


@pytest.mark.parametrize(
    "override",
    [
        "drafter.algorithm=magic",
        "drafter.family=mamba",
        "drafter.block_size=0",
        "drafter.depth=0",
        "drafter.num_taps=-1",
        "drafter.sliding_window=0",
        "drafter.vocab_size=1",
        "drafter.markov_rank=-1",
        "drafter.markov_head=magic",
        "drafter.confidence_label=hard",
        "drafter.train_steps=0",
        "drafter.loss.ce=-0.1",
        "drafter.loss.ce_start=-0.1",
        "drafter.loss.decay=0.0",
        "drafter.loss.ramp=[0.6, 0.2]",
        "drafter.loss.ramp=[0.6]",
        "drafter.loss.chunk_slots=0",
        "drafter.init.bigram=0.0",
    ],
)
def test_a_value_out_of_its_range_is_named(override: str):
    assert out_of_range(override) == override


@pytest.mark.parametrize(
    "override",
    [
        "drafter.family=gemma4",
        "drafter.block_size=1",
        "drafter.depth=1",
        "drafter.num_taps=1",
        "drafter.num_taps=5",
        "drafter.sliding_window=7",
        "drafter.vocab_size=2",
        "drafter.markov_rank=0",
        "drafter.confidence_label=sampled",
        "drafter.train_steps=1",
        "drafter.loss.ce=0.0",
        "drafter.loss.ramp=[0.0, 1.0]",
        "drafter.loss.ramp=[0.5, 0.5]",
        "drafter.init.bigram=0.1",
    ],
)
def test_the_ends_of_a_range_are_in_it(override: str):
    assert accepted(override) == override


@pytest.mark.parametrize(
    "overrides,keys",
    [
        (["sliding_window=6"], ["drafter.sliding_window=6", "drafter.block_size=7"]),
        (
            ["sample_from_anchor=false", "block_size=1"],
            ["drafter.block_size", "drafter.sample_from_anchor=false"],
        ),
        (["num_taps=6"], ["drafter.num_taps=6", "target.num_taps"]),
        (["num_taps=0"], ["drafter.num_taps=0", "drafter.algorithm=dspark"]),
        (["markov_rank=0", "markov_head=rnn"], ["drafter.markov_head=rnn", "markov_rank=0"]),
        (["markov_rank=0", "init.bigram=1"], ["drafter.init.bigram", "markov_rank=0"]),
        (["learned_start=true"], ["drafter.learned_start", "drafter.markov_head=rnn", "vanilla"]),
        (
            ["confidence_head=false", "confidence_label=sampled"],
            ["drafter.confidence_label=sampled", "drafter.confidence_head"],
        ),
        (["rope_scaling={rope_type: yrn, factor: 4.0}"], ["drafter.rope_scaling.rope_type=yrn", "yarn"]),
        (["rope_scaling={factor: 4.0}"], ["drafter.rope_scaling.rope_type=None"]),
        (["rope_scaling={rope_type: yarn}"], ["drafter.rope_scaling.factor", "yarn"]),
        (
            ["rope_scaling={rope_type: longrope, short_factor: [1.0]}"],
            ["drafter.rope_scaling.long_factor", "longrope"],
        ),
    ],
)
def test_contradictions_name_the_keys(overrides: list[str], keys: list[str]):
    assert lacking(refusal(*(f"drafter.{override}" for override in overrides)), keys) == []


def test_taps_are_counted_where_the_target_lists_them():
    assert composed("target.taps=[1,2]", "drafter.num_taps=2").drafter.num_taps == 2
    assert refusal("target.taps=[1,2]", "drafter.num_taps=3").startswith("drafter.num_taps=3:")


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}],
)
def test_rotary_settings_reach_the_draft_as_they_are(rope: dict):
    assert composed(f"drafter.rope_scaling={rope}").drafter.rope_scaling == rope


@pytest.mark.parametrize(
    "drafter,override,expected",
    [
        ("dflash", "markov_rank=64", 0),
        ("dflash", "confidence_head=true", False),
        ("eagle3", "markov_rank=64", 0),
        ("eagle3", "confidence_head=true", False),
        ("eagle3", "depth=2", 1),
        ("eagle3", "sample_from_anchor=false", True),
        ("eagle3_llama", "depth=5", 1),
        ("mtp", "markov_rank=8", 0),
        ("mtp", "confidence_head=true", False),
        ("mtp", "depth=2", 1),
        ("mtp", "sample_from_anchor=false", True),
        ("mtp", "num_taps=1", 0),
    ],
)
def test_what_an_algorithm_fixes_is_named(drafter: str, override: str, expected: object):
    shown = override.replace("true", "True").replace("false", "False")
    message = refusal(f"drafter={drafter}", f"drafter.{override}")
    assert lacking(message, [f"drafter.{shown}:", f"drafter.algorithm={drafter.split('_')[0]}"]) == []
    assert message.endswith(f" {expected}")
