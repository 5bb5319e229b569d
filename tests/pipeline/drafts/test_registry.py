from types import SimpleNamespace

import tiny
import torch

from pipeline.config import DrafterConfig, InitConfig
from pipeline.drafts import registry


def target(rows: int = tiny.VOCABULARY) -> SimpleNamespace:
    g = torch.Generator().manual_seed(3)
    return SimpleNamespace(
        embedding=torch.randn(rows, tiny.HIDDEN, generator=g).bfloat16(),
        head=torch.randn(rows, tiny.HIDDEN, generator=g).bfloat16(),
        final_norm=torch.full((tiny.HIDDEN,), 1.5),
        config=tiny.target_config(),
    )


def drafter(**changes: object) -> DrafterConfig:
    return DrafterConfig(name="dspark", algorithm="dspark", depth=2, markov_rank=8, **changes)


def test_sizes_come_from_the_target() -> None:
    config = registry.draft_config(drafter(), tiny.target_config(), 272, [0, 2], 260)
    assert (config.hidden_size, config.head_dim, config.vocab_size, config.num_hidden_layers) == (
        32,
        8,
        272,
        2,
    )
    assert config.num_target_layers == 4
    assert config.rope_parameters == tiny.target_config().rope_parameters, (
        "pitfall 32: one place for rotary tables"
    )
    assert config.max_position_embeddings == 2048


def test_embedding_and_head_are_the_targets_own_bits() -> None:
    """Pitfall 25."""
    tensors = target()
    draft = registry.build(drafter(), tensors, [0, 2], 260)
    assert draft.embed_tokens.weight.dtype == torch.bfloat16
    assert torch.equal(draft.embed_tokens.weight, tensors.embedding)
    assert torch.equal(draft.lm_head.weight, tensors.head)
    assert not draft.lm_head.weight.requires_grad and not draft.embed_tokens.weight.requires_grad


def test_the_same_seed_gives_the_same_draft() -> None:
    drafts = []
    for _ in range(2):
        torch.manual_seed(5)
        drafts.append(registry.build(drafter(), target(), [0, 2], 260).state_dict())
    assert all(torch.equal(drafts[0][name], drafts[1][name]) for name in drafts[0])


def test_start_from_the_target() -> None:
    tensors = target()
    layers = {
        3: {
            "self_attn.q_proj.weight": torch.full((32, 32), 0.25),
            "input_layernorm.weight": torch.full((32,), 2.0),
            "foreign.weight": torch.ones(3),
        }
    }
    made = registry.build(
        drafter(init=InitConfig(final_norm=True, layers=True)), tensors, [0, 2], 260, layers
    )
    assert torch.equal(made.norm.weight, tensors.final_norm)
    assert torch.equal(made.layers[0].self_attn.q_proj.weight, layers[3]["self_attn.q_proj.weight"])
    assert torch.equal(made.hidden_norm.weight, torch.full((32,), 2.0)), (
        "the context is normed as layer 3 norms its input"
    )
    fc = made.fc.weight.detach()
    assert (fc[:, 32:] - torch.eye(32)).abs().max() < 0.02, "tap 2, the output that layer 3 reads, passes"
    assert fc[:, :32].abs().max() < 0.02
    plain = registry.build(drafter(), tensors, [0, 2], 260)
    assert torch.equal(plain.norm.weight, torch.ones(32))
