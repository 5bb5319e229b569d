"""What speculative decoding needs from a target, for every family. tiny_targets.py describes the families."""

from pathlib import Path

import pytest
import tiny
import tiny_targets
import torch
from safetensors.torch import load_file, save_file
from tiny_errors import refused

from pipeline.config import ConfigError
from pipeline.target.architecture import model_parts
from pipeline.target.model import Target
from pipeline.target.tensors import load_layers, load_tensors

LENGTH = 40  # five windows
TAPS = [-1, 0, 1, 2]
CLOSE = 2e-4  # of states up to 30 in fp32
TIED = {"smollm2", "smollm3", "gemma3", "gemma3_multimodal", "gemma4", "gemma4_unified", "cohere2"}


SCALES = {"granite": 0.25, "granite_hybrid": 0.25, "cohere2": 0.25, "falcon_h1": 0.25}  # of the logits


@pytest.fixture(scope="module", params=tiny_targets.FAMILIES)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tiny_targets.save(request.param, tmp_path_factory.mktemp("targets") / request.param)
    return Target.load(tiny.located(folder), TAPS)


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tiny_targets.save("deepseek_v4", tmp_path_factory.mktemp("deepseek"))
    return Target.load(tiny.located(folder), TAPS)


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(1))


def test_taps_are_what_a_forward_hook_on_the_named_layer_sees(target: Target, ids: torch.Tensor) -> None:
    """Pitfall 16. For several streams [B, S, streams, H], a tap is the mean."""
    seen = {}
    hooks = [
        target.decoder.layers[layer].register_forward_hook(
            lambda _, __, out, at=layer: seen.update({at: out[0] if isinstance(out, tuple) else out})
        )
        for layer in TAPS[1:]
    ]
    parts = target.run(ids).hidden.split(32, dim=-1)
    for hook in hooks:
        hook.remove()
    streams = {len(state.shape) for state in seen.values()}
    assert streams == ({4} if target.config.model_type == "deepseek_v4" else {3})
    for part, layer in zip(parts[1:], TAPS[1:], strict=True):
        state = seen[layer]
        expected = state if state.dim() == 3 else sum(state[:, :, i] for i in range(4)) / 4
        assert torch.allclose(part, expected, atol=1e-6)
    assert not torch.allclose(parts[1], parts[2], atol=1e-2)


def test_tap_minus_one_is_the_embedding_as_the_first_layer_gets_it(target: Target, ids: torch.Tensor) -> None:
    """Gemma scales it by the square root of the width."""
    embedding = load_tensors(tiny.located(target.folder)).embedding
    gemma = target.config.model_type.startswith("gemma")
    scale = 32**0.5 if gemma else getattr(target.config, "embedding_multiplier", 1.0)
    assert torch.allclose(target.run(ids).hidden[..., :32], scale * embedding[ids], atol=1e-5)


def test_head_on_the_last_state_gives_the_models_logits(target: Target, ids: torch.Tensor) -> None:
    """Pitfall 17. The logits are capped if the model caps them."""
    target.check_head()
    states = target.run(ids)
    logits = target.logits(states.last_hidden)
    assert torch.equal(logits, target.model(input_ids=ids).logits)
    uncapped = states.last_hidden @ target.head.weight.T
    if getattr(target.config, "final_logit_softcapping", None):
        assert float(logits.abs().max()) < 1.0 < float(uncapped.abs().max())
    else:
        assert torch.allclose(logits, uncapped * SCALES.get(target.folder.name, 1.0), atol=CLOSE)
    assert not torch.allclose(target.logits(states.hidden[..., -32:]), logits, atol=1e-2)


def test_tensors_are_those_of_the_model(target: Target) -> None:
    """Pitfall 25: embedding and head bit-equal to the target's, tied or not."""
    tensors = load_tensors(tiny.located(target.folder))
    assert tensors.embedding.shape == (272, 32)
    assert torch.equal(tensors.embedding, target.model.get_input_embeddings().weight)
    assert torch.equal(tensors.head, target.model.get_output_embeddings().weight)
    assert torch.equal(tensors.final_norm, model_parts(target.model).final_norm.weight)
    assert torch.equal(tensors.head, tensors.embedding) == (target.folder.name in TIED)
    assert len(load_layers(tiny.located(target.folder), [2])[2]) > 5


# --- the cache ---


def test_runs_and_crops_give_the_states_of_a_run_from_scratch(target: Target, ids: torch.Tensor) -> None:
    """Each round runs some tokens and removes the last of them, before, at and beyond windows and compressors."""
    whole = target.run(ids)
    cache, place = target.new_cache(), 0
    noise = torch.Generator().manual_seed(2)
    for new, kept in ((12, 12), (5, 3), (4, 4), (1, 1), (7, 2), (8, 8), (3, 1), (9, 9)):
        fed = ids[:, place : place + new].clone()
        fed[:, kept:] = torch.randint(0, 256, fed[:, kept:].shape, generator=noise)
        states = target.run(fed, cache=cache)
        assert states.last_hidden.shape[1] == fed.shape[1]
        rows = slice(place, place + kept)
        assert torch.allclose(states.hidden[:, :kept], whole.hidden[:, rows], atol=CLOSE)
        assert torch.allclose(states.last_hidden[:, :kept], whole.last_hidden[:, rows], atol=CLOSE)
        place += kept
        target.crop(cache, place)
        assert cache.get_seq_length() == place
    assert place == LENGTH


def test_drafted_answers_are_the_models_own_greedy_ones(target: Target, ids: torch.Tensor) -> None:
    """Pitfall 41: 24 tokens in rounds that accept the first 0, 1, 2 or 3 drafts."""
    prompt = ids[:, :14]
    asked = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 256}
    expected = target.model.generate(prompt, attention_mask=torch.ones_like(prompt), **asked)[0, 14:].tolist()
    cache, answer = target.new_cache(), []
    states = target.run(prompt, cache=cache)
    anchor = int(target.logits(states.last_hidden[0, -1]).argmax())
    while len(answer) < 24:
        answer.append(anchor)
        drafts = (expected + [0] * 8)[len(answer) : len(answer) + 3]
        good = len(answer) % 4
        drafts = [token if i < good else (token + 1) % 256 for i, token in enumerate(drafts)]
        states = target.run(torch.tensor([[anchor, *drafts]]), cache=cache)
        choices = target.logits(states.last_hidden[0]).argmax(-1).tolist()
        held = next((i for i in range(3) if drafts[i] != choices[i]), 3)
        answer += drafts[:held]
        target.crop(cache, 14 + len(answer))
        anchor = choices[held]
    assert answer[:24] == expected
    assert len(set(expected)) >= 3


def test_padding_on_the_right_changes_nothing_for_the_tokens_before_it(
    target: Target, ids: torch.Tensor
) -> None:
    """Pitfall 15: batched = single."""
    short = ids[:, :13]
    padded = torch.cat([short, torch.zeros(1, LENGTH - 13, dtype=torch.long)], 1)
    batched, single = target.run(torch.cat([ids, padded])), target.run(short)
    assert torch.allclose(batched.hidden[1, :13], single.hidden[0], atol=CLOSE)
    assert torch.allclose(batched.last_hidden[1, :13], single.last_hidden[0], atol=CLOSE)


def test_a_window_is_not_taken_back_beyond_what_it_kept(tmp_path: Path, ids: torch.Tensor) -> None:
    """transformers' crop silently left holes in the window."""
    target = Target.load(tiny.located(tiny_targets.save("gemma3", tmp_path)), [0])
    cache = target.new_cache()
    target.run(ids[:, :20], cache=cache)
    target.crop(cache, 20)
    target.run(ids[:, 20:23], cache=cache)
    with refused(ValueError, "crop", 19):
        target.crop(cache, 19)
    target.crop(cache, 20)


# --- DeepSeek-V4 ---


def test_padding_that_compressors_would_take_in_is_refused(deepseek: Target, ids: torch.Tensor) -> None:
    mask = torch.ones_like(ids)
    deepseek.run(ids, attention_mask=mask, cache=deepseek.new_cache())
    mask[0, 0] = 0
    with pytest.raises(ConfigError, match="answers.batch_size=1"):
        deepseek.run(ids, attention_mask=mask, cache=deepseek.new_cache())


def test_the_published_names_of_tensors(deepseek: Target, tmp_path: Path, ids: torch.Tensor) -> None:
    """deepseek-ai's files have no prefix, and other names for embedding and head."""
    for path in deepseek.folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = load_file(deepseek.folder / "model.safetensors")
    short = {name.removeprefix("model.").replace("embed_tokens", "embed"): w for name, w in weights.items()}
    assert {"embed.weight", "head.weight", "norm.weight"} <= set(short)
    save_file(short, tmp_path / "model.safetensors", metadata={"format": "pt"})
    published, saved = (load_tensors(tiny.located(folder)) for folder in (tmp_path, deepseek.folder))
    assert torch.equal(published.embedding, saved.embedding)
    assert torch.equal(published.head, saved.head)
    assert torch.equal(published.final_norm, saved.final_norm)
    assert (
        load_layers(tiny.located(tmp_path), [1])[1].keys()
        == load_layers(tiny.located(deepseek.folder), [1])[1].keys()
    )
    assert torch.equal(Target.load(tiny.located(tmp_path), TAPS).run(ids).hidden, deepseek.run(ids).hidden)


def test_an_attention_that_the_family_does_not_have_is_named(deepseek: Target) -> None:
    with pytest.raises(ConfigError, match="target.attention=sdpa"):
        Target.load(tiny.located(deepseek.folder, attention="sdpa"), TAPS)
