"""Parity with the reference implementation's figures.

Where it has none, the comparison is with a plain implementation: one block and one head at a time, with autograd.
"""

import json
import math
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file
from torch.nn import functional

from pipeline.drafts.folders import checkpoint, parity

GOLDEN = Path(__file__).parents[3] / "golden"
# the number of trainable tensors, each of which has a gradient
TRAINABLE = {"qwen3_dspark_vanilla": 29, "qwen3_dspark_rnn": 31, "gemma4_dspark_vanilla": 31}
backends = pytest.mark.parametrize("attention", ["dense", "grouped"])
chunks = pytest.mark.parametrize("chunk_slots", [128, 5])


def check(report: dict[str, float], gradients: int, confidence: bool = True) -> None:
    assert report.pop("draft_logits") < 1e-4
    assert ("confidence_logits" in report) == confidence
    assert report.pop("confidence_logits", 0) < 1e-4
    assert report.pop("eval_mask") == 0
    assert report.pop("target_ids") == 0
    assert report.pop("loss_gamma7") < 1e-5
    assert report.pop("loss_gamma4") < 1e-5
    assert len(report) == gradients, "every trainable tensor has a gradient"
    assert max(report.values()) < 1e-4, report


@backends
@chunks
@pytest.mark.parametrize("name", TRAINABLE)
def test_golden(name: str, attention: str, chunk_slots: int) -> None:
    check(parity.compare(GOLDEN / name, attention, chunk_slots), TRAINABLE[name])


@backends
@chunks
def test_golden_eagle3(attention: str, chunk_slots: int) -> None:
    report = parity.compare(GOLDEN / "qwen3_eagle3", attention, chunk_slots)
    assert report.pop("loss") < 1e-5
    assert list(report) == [f"draft_logits_step{k}" for k in range(4)]
    assert max(report.values()) < 1e-4, report


# --- the plain implementation ---


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def turned(x: torch.Tensor, positions: list[int], theta: float) -> torch.Tensor:
    """The rotary embedding of x [n, d], with the two halves of d as pairs."""
    half = x.shape[-1] // 2
    angles = torch.tensor([[p * theta ** (-i / half) for i in range(half)] for p in positions])
    first, second = x[:, :half], x[:, half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
    )


def attended(w, i: int, x: torch.Tensor, context: torch.Tensor, anchor: int, config) -> torch.Tensor:
    """Self-attention of layer i, head by head: slots x [T, H] see the context [a, H] and each other."""
    d, name = config.head_dim, f"layers.{i}.self_attn."
    share = config.num_attention_heads // config.num_key_value_heads
    both, slots = torch.cat([context, x]), list(range(anchor, anchor + len(x)))
    theta, heads = config.rope_parameters["rope_theta"], []
    for h in range(config.num_attention_heads):
        own, shared = slice(h * d, (h + 1) * d), slice(h // share * d, (h // share + 1) * d)
        q = turned(norm(x @ w[name + "q_proj.weight"][own].T, w[name + "q_norm.weight"]), slots, theta)
        k = norm(both @ w[name + "k_proj.weight"][shared].T, w[name + "k_norm.weight"])
        k = turned(k, list(range(len(both))), theta)
        heads.append((q @ k.T / math.sqrt(d)).softmax(-1) @ (both @ w[name + "v_proj.weight"][shared].T))
    return torch.cat(heads, -1) @ w[name + "o_proj.weight"].T


def states(w, config, batch, row: int, anchor: int) -> torch.Tensor:
    """The final states [T, H] of the block at ``anchor``."""
    ids = torch.tensor([int(batch.input_ids[row, anchor])] + [config.mask_token_id] * (config.block_size - 1))
    context = norm(batch.hidden[row, :anchor] @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = w["embed_tokens.weight"][ids]
    for i in range(config.num_hidden_layers):
        name = f"layers.{i}."
        x = x + attended(w, i, norm(x, w[name + "input_layernorm.weight"]), context, anchor, config)
        y = norm(x, w[name + "post_attention_layernorm.weight"])
        gate = functional.silu(y @ w[name + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"])


def one_draft(w, config, batch, row: int, previous: int, h: torch.Tensor):
    """The logits [V] of the draft after the token at position ``previous``, and its confidence logit or None."""
    logits, embedded = w["lm_head.weight"] @ h, None
    if config.markov_rank:
        embedded = w["markov_head.markov_w1.weight"][batch.input_ids[row, previous]]
        both = torch.cat([h, embedded])
        features = embedded
        if config.markov_head_type == "gated":
            gate = w["markov_head.gate_proj.weight"] @ both + w["markov_head.gate_proj.bias"]
            features = torch.sigmoid(gate) * embedded
        logits = logits + w["markov_head.markov_w2.weight"] @ features
    if not config.enable_confidence_head:
        return logits, None
    return logits, (w["confidence_head.proj.weight"] @ both + w["confidence_head.proj.bias"]).squeeze()


def one_loss(w, logits, confidence, target_state, label: int, given) -> torch.Tensor:
    p, q = logits.softmax(-1), (w["lm_head.weight"] @ target_state).softmax(-1)
    distance = (p - q).abs().sum()
    loss = -given["ce"] * p[label].log() + given.get("tv", 0.0) * distance
    if confidence is not None:
        label_c = 1 - distance.detach() / 2
        c = torch.sigmoid(confidence)
        loss = loss - given["confidence"] * (label_c * c.log() + (1 - label_c) * (1 - c).log())
    return loss


def reference(draft, batch, anchors: list[list[int]], given: dict, decays=(7.0, 4.0)):
    """Outputs, losses, and gradients of the first decay's loss, computed slot by slot. Anchor -1 means no block."""
    config, w = draft.config, {n: v.detach().clone() for n, v in draft.state_dict().items()}
    for name, value in draft.named_parameters():
        w[name].requires_grad_(value.requires_grad)
    slots, shift = config.block_size, 0 if config.sample_from_anchor else 1
    shape = (len(anchors), len(anchors[0]), slots)
    out = {
        "draft_logits": torch.full((*shape, config.vocab_size), 1e9), "confidence_logits": torch.full(shape, 1e9),
        "target_ids": torch.zeros(shape, dtype=torch.int64), "eval_mask": torch.zeros(shape, dtype=torch.bool),
    }  # fmt: skip
    sums = [[torch.zeros(()), 0.0] for _ in decays]
    for row, column, anchor in (
        (b, a, x) for b, line in enumerate(anchors) for a, x in enumerate(line) if x >= 0
    ):
        hidden, going = states(w, config, batch, row, anchor), True
        for slot in range(shift, slots):
            k = slot - shift  # draft k is the token at anchor + 1 + k, after the token at anchor + k
            label, there = anchor + 1 + k, (row, column, slot)
            if label >= batch.input_ids.shape[1]:
                break
            logits, confidence = one_draft(w, config, batch, row, anchor + k, hidden[slot])
            out["draft_logits"][there] = logits.detach()
            if confidence is not None:
                out["confidence_logits"][there] = confidence.detach()
            going = going and label < int(batch.lengths[row]) and bool(batch.loss_mask[row, label])
            if not going:
                continue
            token = int(batch.input_ids[row, label])
            out["target_ids"][there], out["eval_mask"][there] = token, True
            loss = one_loss(w, logits, confidence, batch.last_hidden[row, anchor + k], token, given)
            for total, decay in zip(sums, decays, strict=True):
                weight = math.exp(-k / decay)
                total[0], total[1] = total[0] + weight * loss, total[1] + weight
    losses = [total / weight for total, weight in sums]
    losses[0].backward()
    gradients = {f"grad.{n}": v.grad for n, v in w.items() if v.grad is not None}
    return out, {f"loss_gamma{d:.0f}": x.item() for d, x in zip(decays, losses, strict=True)}, gradients


def write_folder(folder: Path, draft, given: dict) -> int:
    """Write a reference folder like those in tests/golden; returns how many gradients it holds."""
    batch, anchors = tiny.batch([26, 17]), [[4, 9, 20, 23], [2, 10, 15, -1]]
    mask = batch.loss_mask.clone()
    mask[0, 12:14] = False  # a user's turn, where the block at 9 ends
    batch = type(batch)(**{**batch.__dict__, "loss_mask": mask})
    out, losses, gradients = reference(draft, batch, anchors, given)
    if draft.confidence_head is None:
        del out["confidence_logits"]
    keep = torch.tensor(anchors) >= 0
    lengths = torch.arange(26) < batch.lengths[:, None]
    checkpoint.save(draft, folder)
    tensors = {
        "input_ids": batch.input_ids, "loss_mask": mask, "attention_mask": lengths.long(),
        "target_hidden_states": batch.hidden, "target_last_hidden_states": batch.last_hidden,
        "anchor_positions": torch.tensor(anchors).clamp(min=0), "block_keep_mask": keep, **out,
    }  # fmt: skip
    save_file(tensors, folder / "tensors.safetensors")
    save_file(gradients, folder / "gradients.safetensors")
    expected = {"losses": losses, "weights": given, "gradients_of": "loss_gamma7"}
    (folder / "expected.json").write_text(json.dumps(expected))
    return len(gradients)


PAPER = {"ce": 0.1, "tv": 0.9, "confidence": 1.0}
MADE = {
    "dflash": ("dflash", {}, {"ce": 1.0}),
    "dflash_distilled": ("dflash", {}, {"ce": 0.1, "tv": 0.9}),
    "dflash_fill_in": ("dflash", {"sample_from_anchor": False, "block_size": 8}, {"ce": 0.5, "tv": 0.5}),
    "dspark": ("dspark", {}, PAPER),
    "dspark_gated": ("dspark", {"markov_head": "gated"}, PAPER),
}


@pytest.fixture(scope="module", params=MADE)
def made(request, tmp_path_factory) -> tuple[str, Path, int]:
    algorithm, changes, given = MADE[request.param]
    draft, folder = tiny.draft(algorithm, **changes), tmp_path_factory.mktemp("reference")
    return request.param, folder, write_folder(folder, draft, given)


@backends
def test_straight_down(made: tuple[str, Path, int], attention: str) -> None:
    name, folder, gradients = made
    assert gradients == {"dspark": 29, "dspark_gated": 31}.get(name, 25)
    check(parity.compare(folder, attention, 16), gradients, confidence=name.startswith("dspark"))


def test_a_difference_is_seen(made: tuple[str, Path, int], tmp_path: Path) -> None:
    """A slot shifted by one, a mask off by one and a tensor without a gradient are all reported as differences."""
    from safetensors.torch import load_file

    _, folder, _ = made
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors, gradients = (load_file(tmp_path / f"{n}.safetensors") for n in ("tensors", "gradients"))
    tensors["draft_logits"] = tensors["draft_logits"].roll(1, 2)
    tensors["eval_mask"][0, 0, -1] ^= True
    tensors["target_ids"] += 1
    del gradients["grad.fc.weight"]
    save_file(tensors, tmp_path / "tensors.safetensors")
    save_file(gradients, tmp_path / "gradients.safetensors")
    report = parity.compare(tmp_path)
    assert report["draft_logits"] > 0.1
    assert report["eval_mask"] == report["target_ids"] == 1
    assert report["grad.fc.weight"] == math.inf
