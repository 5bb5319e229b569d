"""The tensors from which a new draft starts (``drafter.init``)."""

import pytest
import tiny
import tiny_targets
import torch
from tiny_errors import refused

from pipeline.config import ConfigError, InitConfig
from pipeline.drafts import registry
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.registry import Start

LAYER = {
    "self_attn.q_proj.weight": torch.full((32, 32), 0.25),
    "self_attn.k_proj.weight": torch.full((16, 32), 0.5),
    "mlp.gate_proj.weight": torch.full((64, 32), 0.125),
    "input_layernorm.weight": torch.full((32,), 2.0),
    "post_attention_layernorm.weight": torch.full((32,), 3.0),
    "foreign.weight": torch.ones(3),
}


def build(algorithm: str, start: Start, config: object = None, taps=(0, 2), **changes):
    init = changes.pop("init", InitConfig(final_norm=True, layers=True))
    return registry.build(
        tiny.drafter(algorithm, init=init, **changes),
        tiny.target_tensors(config=config),
        list(taps),
        260,
        start,
    )


def test_layers_and_final_norm_of_the_target() -> None:
    made = build("dspark", Start({3: LAYER}))
    assert torch.equal(made.norm.weight, torch.full((32,), 1.5))
    layer = made.layers[0]
    assert torch.equal(layer.self_attn.q_proj.weight, torch.full((32, 32), 0.25))
    assert torch.equal(layer.mlp.gate_proj.weight, torch.full((64, 32), 0.125))
    assert torch.equal(layer.post_attention_layernorm.weight, torch.full((32,), 3.0))
    assert torch.equal(made.layers[1].input_layernorm.weight, torch.ones(32)), "one layer was given"
    assert torch.equal(made.hidden_norm.weight, torch.full((32,), 2.0)), (
        "the context as layer 3 norms its input"
    )
    fc = made.fc.weight.detach()
    assert (fc[:, 32:] - torch.eye(32)).abs().max() < 0.02, "tap 2, the output that layer 3 reads, passes"
    assert fc[:, :32].abs().max() < 0.02


def test_without_init_nothing_is_taken() -> None:
    plain = build("dspark", Start({3: LAYER}), init=InitConfig())
    assert torch.equal(plain.norm.weight, torch.ones(32))
    assert plain.layers[0].self_attn.q_proj.weight.abs().max() < 0.15


def test_eagle3_takes_the_projections_into_the_states_half() -> None:
    """Eagle3's layer reads [embedding; state], and the target's layer reads the state."""
    made = build("eagle3", Start({3: LAYER}))
    query = made.layer.self_attn.q_proj.weight
    assert query.shape == (32, 64) and torch.equal(query[:, 32:], torch.full((32, 32), 0.25))
    assert query[:, :32].abs().max() < 0.15, "the embedding's half is new"
    assert torch.equal(made.layer.self_attn.k_proj.weight[:, 32:], torch.full((16, 32), 0.5))
    assert torch.equal(made.layer.hidden_norm.weight, torch.full((32,), 2.0))
    assert torch.equal(made.layer.input_layernorm.weight, torch.ones(32)), "it norms embeddings here"
    assert torch.equal(made.layer.mlp.gate_proj.weight, torch.full((64, 32), 0.125))


def test_mtp_takes_the_layer_as_it_is() -> None:
    made = build("mtp", Start({3: LAYER}), taps=())
    assert torch.equal(made.layer.self_attn.q_proj.weight, torch.full((32, 32), 0.25))
    assert torch.equal(made.layer.input_layernorm.weight, torch.full((32,), 2.0))


@pytest.mark.parametrize("family", [None, "qwen3"])
def test_norms_of_gemma_3_are_stored_as_a_difference_from_one(family: str | None) -> None:
    """Its norms multiply with 1 + weight, but a draft's with the weight, so a plain copy would be near zero."""
    made = build("dspark", Start({3: LAYER}), tiny_targets.gemma3().config, family=family)
    assert torch.equal(made.norm.weight, torch.full((32,), 2.5))
    assert torch.equal(made.hidden_norm.weight, torch.full((32,), 3.0))
    assert torch.equal(made.layers[0].post_attention_layernorm.weight, torch.full((32,), 4.0))
    assert torch.equal(made.layers[0].mlp.gate_proj.weight, torch.full((64, 32), 0.125))
    assert torch.equal(build("dspark", Start(), tiny_targets.gemma4().config.get_text_config()).norm.weight,
                       torch.full((32,), 1.5))  # fmt: skip


def test_the_targets_states_pass_the_warm_started_context(target_folder) -> None:
    """If the tap is just below the copied layer, its context keys equal the target's own from the first step."""
    from pipeline.config import TargetConfig
    from pipeline.target.model import Target
    from pipeline.target.tensors import load_layers, load_tensors

    config = TargetConfig(name="tiny", path=str(target_folder), dtype="float32", device="cpu")
    layers = load_layers(config, [3])
    made = registry.build(
        tiny.drafter(depth=1, init=InitConfig(layers=True)), load_tensors(config), [0, 2], 260, Start(layers)
    )  # fmt: skip
    with torch.no_grad():
        made.fc.weight[:, :32] = 0
        made.fc.weight[:, 32:] = torch.eye(32)  # the small random part is off
    states = Target.load(config, [0, 2]).run(torch.tensor([[5, 6, 7, 8]]))
    theirs = states.hidden[0, :, 32:]
    weight = layers[3]["input_layernorm.weight"]
    normed = theirs * torch.rsqrt(theirs.square().mean(-1, keepdim=True) + 1e-6) * weight
    keys = normed @ layers[3]["self_attn.k_proj.weight"].T
    with torch.no_grad():
        assert torch.allclose(
            made.layers[0].self_attn.k_proj(made.context(states.hidden[0])), keys, atol=1e-3
        )


def test_bigrams_start_the_markov_head() -> None:
    previous, following = torch.tensor([1, 1, 1, 2, 2, 3]), torch.tensor([2, 2, 3, 1, 1, 1])
    init = InitConfig(bigram=2.0)
    made = build("dspark", Start(pairs=(previous, following)), init=init)
    head = made.markov_head
    table = head.markov_w1.weight @ head.markov_w2.weight.T
    assert table[1, 2] > 0.4 > 0 > table[2, 3], "2 follows 1 in two of three cases, 3 never follows 2"
    assert not table[5:].any()
    reduced = build("dspark", Start(pairs=(previous, following), ids=torch.tensor([2, 3, 9])), init=init)
    columns = reduced.markov_head.markov_w1.weight @ reduced.markov_head.markov_w2.weight.T  # [272, 3]
    assert torch.allclose(columns[:, :2].abs(), table[:, 2:4].abs(), atol=1e-4)
    assert not columns[:, 2].any()


# --- from another draft -----------------------------------------------------------------------------------------


def other(algorithm: str, tmp_path, ids=None, **changes):
    made = tiny.draft(algorithm, seed=9, ids=ids, **changes)
    checkpoint.save(made, tmp_path)
    return made, checkpoint.read_tensors(tmp_path)


FROM = InitConfig(draft="some_dflash:v3")


def test_a_dflash_starts_a_dspark(tmp_path) -> None:
    """The two heads are new; embedding and head stay the target's."""
    dflash, tensors = other("dflash", tmp_path)
    torch.manual_seed(0)
    made, fresh = build("dspark", Start(draft=tensors), init=FROM), tiny.target_tensors()
    for name, value in dflash.state_dict().items():
        if name not in ("embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(made.state_dict()[name], value), name
    assert torch.equal(made.lm_head.weight, fresh.head)
    assert made.markov_head.markov_w1.weight.std().item() == pytest.approx(0.02, rel=0.2)


def test_a_dspark_starts_a_dspark_with_its_heads(tmp_path) -> None:
    made_before, tensors = other("dspark", tmp_path)
    made = build("dspark", Start(draft=tensors), init=FROM)
    for name in (
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
        "confidence_head.proj.weight",
    ):
        assert torch.equal(made.state_dict()[name], made_before.state_dict()[name])
    gated = build("dspark", Start(draft=tensors), init=FROM, markov_head="gated")
    assert torch.equal(gated.markov_head.markov_w1.weight, made_before.markov_head.markov_w1.weight)


def test_the_vocabulary_stays_the_new_drafts_own(tmp_path) -> None:
    """Another cache has other frequent tokens, so its d2t does not fit the rows of the new draft's head."""
    theirs, own = torch.arange(0, 200, 2), torch.arange(1, 201, 2)
    before, tensors = other("dspark", tmp_path, ids=theirs)
    made = build("dspark", Start(draft=tensors, ids=own), init=FROM)
    assert torch.equal(made.ids, own) and torch.equal(made.lm_head.weight, tiny.target_tensors().head[own])
    assert torch.equal(made.fc.weight, before.fc.weight)
    assert made.markov_head.markov_w2.weight.abs().max() < 0.15, "its rows were of other tokens"
    same = build("dspark", Start(draft=tensors, ids=theirs), init=FROM)
    assert torch.equal(same.markov_head.markov_w2.weight, before.markov_head.markov_w2.weight)


def test_a_whole_vocabulary_starts_a_reduced_one(tmp_path) -> None:
    before, tensors = other("dflash", tmp_path)
    made = build("dspark", Start(draft=tensors, ids=torch.arange(9)), init=FROM)
    assert torch.equal(made.layers[1].mlp.up_proj.weight, before.layers[1].mlp.up_proj.weight)


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"depth": 3}, ["layers.2.input_layernorm.weight", "(32,)"]),
        ({"family": "llama"}, None),
        ({"taps": [0, 1, 2]}, ["fc.weight", "(32, 96)", "(32, 64)"]),
    ],
)
def test_a_draft_that_does_not_fit_is_named(tmp_path, changes: dict, words: list[str] | None) -> None:
    _, tensors = other("dflash", tmp_path)
    if words is None:  # only the norms over the heads have no place; the rest fits
        build("dspark", Start(draft=tensors), init=FROM, **changes)
        return
    with refused(ConfigError, "drafter.init.draft=some_dflash:v3", *words):
        build("dspark", Start(draft=tensors), init=FROM, **changes)


def test_an_eagle3_does_not_start_a_dspark(tmp_path) -> None:
    _, tensors = other("eagle3", tmp_path)
    with refused(ConfigError, "drafter.init.draft=some_dflash:v3", "hidden_norm.weight"):
        build("dspark", Start(draft=tensors), init=FROM, depth=1)
