from pathlib import Path

import pytest
import tiny
import torch
from tiny_errors import refused
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from pipeline.config import ConfigError
from pipeline.target.files import identity
from pipeline.target.model import Target

IDS = torch.tensor([[256, 10, 20, 30, 40, 50, 60, 70, 80, 90]])


@pytest.fixture(scope="module")
def target(target_folder: Path) -> Target:
    return Target.load(tiny.located(target_folder), taps=[-1, 0, 2, 3])


@pytest.fixture(scope="module")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with sliding windows of 4 tokens, a scaled and tied embedding, and capped logits."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=4, final_logit_softcapping=2.0, eos_token_id=[1, 5],
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("gemma")
    model = Gemma3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6.0)
    model.save_pretrained(folder)
    return folder


# --- running it ---


def test_taps_are_what_a_forward_hook_on_the_named_layer_sees(target: Target) -> None:
    """Pitfall 16: the output of layer l is hidden_states[l + 1] of transformers; -1 is the embedding."""
    seen = {}
    for layer in (0, 2, 3):
        module = target.decoder.layers[layer]
        module.register_forward_hook(lambda _, __, out, layer=layer: seen.update({layer: out}))
    states = target.run(IDS)
    parts = states.hidden.split(32, dim=-1)
    assert torch.equal(parts[0], target.model.get_input_embeddings()(IDS))
    assert all(torch.equal(part, seen[layer]) for part, layer in zip(parts[1:], (0, 2, 3), strict=True))
    reference = target.model(input_ids=IDS, output_hidden_states=True).hidden_states
    assert torch.equal(parts[1], reference[1])
    assert torch.equal(parts[2], reference[3])
    assert not torch.equal(parts[2], reference[2])


def test_head_on_the_last_state_gives_the_targets_logits(target: Target) -> None:
    """Pitfall 17: the state after the final norm, not before it."""
    states = target.run(IDS)
    expected = target.model(input_ids=IDS).logits
    assert torch.equal(target.logits(states.last_hidden), expected)
    before_the_norm = states.hidden[..., -32:]
    assert not torch.allclose(target.logits(before_the_norm), expected, atol=1e-2)


def test_right_padding_changes_nothing_for_the_tokens_before_it(target: Target) -> None:
    """Pitfall 15: batched = single."""
    short = IDS[:, :4]
    batch = torch.cat([IDS, torch.cat([short, torch.zeros(1, 6, dtype=torch.long)], 1)])
    batched, single = target.run(batch), target.run(short)
    assert torch.allclose(batched.hidden[1, :4], single.hidden[0], atol=1e-5)
    assert torch.allclose(batched.last_hidden[1, :4], single.last_hidden[0], atol=1e-5)


def test_a_cache_continues_the_sequence_and_crop_takes_positions_back(target: Target) -> None:
    whole = target.run(IDS)
    cache = target.new_cache()
    target.run(IDS[:, :5], cache=cache)
    target.run(torch.tensor([[1, 2, 3]]), cache=cache)  # a rejected draft
    target.crop(cache, 5)
    assert cache.get_seq_length() == 5
    rest = target.run(IDS[:, 5:], cache=cache)
    assert torch.allclose(rest.last_hidden, whole.last_hidden[:, 5:], atol=1e-5)
    assert torch.allclose(rest.hidden, whole.hidden[:, 5:], atol=1e-5)
    target.crop(cache, 10)
    assert cache.get_seq_length() == 10
    with refused(ValueError, "crop", 10, 11):
        target.crop(cache, 11)


def test_crop_beyond_a_sliding_window(gemma_folder: Path) -> None:
    target = Target.load(tiny.located(gemma_folder), taps=[1])
    ids = torch.arange(20, 40)[None]
    whole = target.run(ids)
    cache = target.new_cache()
    target.run(ids[:, :12], cache=cache)
    target.run(torch.tensor([[7, 8, 9, 10, 11]]), cache=cache)
    target.crop(cache, 12)
    rest = target.run(ids[:, 12:], cache=cache)
    assert torch.allclose(rest.last_hidden, whole.last_hidden[:, 12:], atol=1e-4)


def test_softcapped_logits_and_scaled_embedding(gemma_folder: Path) -> None:
    target = Target.load(tiny.located(gemma_folder), taps=[-1, 2])
    target.check_head()
    ids = torch.arange(20, 30)[None]
    states, model = target.run(ids), target.model(input_ids=ids, output_hidden_states=True)
    logits = target.logits(states.last_hidden)
    assert torch.allclose(logits, model.logits, atol=1e-6)
    assert float(logits.abs().max()) <= 2.0
    assert torch.equal(states.hidden[..., :32], model.hidden_states[0])
    assert torch.equal(states.hidden[..., 32:], model.hidden_states[3])


def test_a_model_whose_logits_are_not_head_of_last_state_is_refused(target_folder: Path) -> None:
    target = Target.load(tiny.located(target_folder), taps=[0])
    target.check_head()
    target.config.logit_scale = 0.5
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM"):
        target.check_head()


def test_what_a_target_says_of_itself(target: Target, target_folder: Path) -> None:
    assert (target.hidden_size, target.vocab_size, target.dtype) == (32, 272, torch.float32)
    assert target.eos == (258, 256)
    assert target.identity == identity(target_folder)
    assert not any(weight.requires_grad for weight in target.model.parameters())


@pytest.mark.parametrize("taps", [[4], [-2], [1, 1], []])
def test_layers_that_do_not_exist_are_refused(target_folder: Path, taps: list[int]) -> None:
    with refused(ConfigError, f"target.taps={taps}", -1, 3):
        Target.load(tiny.located(target_folder, taps=taps))


def test_a_device_that_does_not_exist_is_named(target_folder: Path) -> None:
    with pytest.raises(ConfigError, match="target.device=tpu"):
        Target.load(tiny.located(target_folder, device="tpu"))
