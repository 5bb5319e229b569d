"""vLLM's library speculators reads draftline's exports, and draftline reads its drafts; both give the same logits."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
import results
import torch
from environments import Environment
from running import ask
from safetensors.torch import load_file, save_file
from subjects import DRAFTERS, MASK, Subject

from data_specs.manifest import read_json
from pipeline.drafts.base import Batch, Blocks
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from stages.export import speculators as exporter

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600, func_only=True)]
ANCHORS = [[5, 6, 17, 30, 52]]
LARGEST = 1e-5
CODE = [
    str(Path(__file__).parents[2]),
    sysconfig.get_path("purelib"),
]  # searched after the library's own packages


def sample(
    subject: Subject, taps: list[int], folder: Path, ids: torch.Tensor | None = None
) -> tuple[Batch, Path]:
    """The first prompt with its answer, also in the runner's form; ``ids`` are a reduced vocabulary."""
    batch, _ = subject.sample(subject.target(taps), subject.prompts[0])
    tensors = {
        "input_ids": batch.input_ids,
        "hidden": batch.hidden,
        "last_hidden": batch.last_hidden,
        "anchors": torch.zeros_like(batch.input_ids, dtype=torch.bool),
        "embedding": subject.tensors.embedding,
        "head": subject.tensors.head,
    }
    tensors["anchors"][0, ANCHORS[0]] = True
    if ids is not None:
        known = torch.zeros(len(subject.tensors.head), dtype=torch.bool)
        known[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": known}
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "batch.safetensors")
    return batch, folder / "batch.safetensors"


@torch.no_grad()
def logits(draft: Model, batch: Batch) -> torch.Tensor:
    """Draftline's logits [A, G, D] under teacher forcing, including the part of the sequential head."""
    anchors = torch.tensor(ANCHORS)
    blocks = Blocks(anchors, torch.ones_like(anchors, dtype=torch.bool))
    states = draft.block_states(batch, blocks)
    _, features = draft.head_inputs(batch, blocks, states)
    return (draft.logits(states) + (0 if features is None else draft.markov_head.bias(features)))[0]


def compare(
    environment: Environment, target: str, name: str, draft: Model, batch: Batch, written: Path
) -> None:
    ours = logits(draft, batch)
    theirs = load_file(written)["logits"][:, -ours.shape[1] :]  # in 1+N, the anchor's slot drafts nothing
    apart = float((ours - theirs).abs().max())
    shown = f"largest difference of the logits {apart:.0e}, largest logit {float(ours.abs().max()):.0f}"
    results.add_figure(environment.versions, target, name, shown, apart < LARGEST)
    assert apart < LARGEST


def check(environment: Environment, subject: Subject, name: str, folder: Path, scratch: Path) -> None:
    """The library reads the export ``folder``, writes it unchanged, and computes the same logits in fp64."""
    draft = checkpoint.load(subject.draft(name)).double()
    batch, path = sample(subject, draft.config.target_layer_ids, scratch)
    batch = replace(batch, hidden=batch.hidden.double(), last_hidden=batch.last_hidden.double())
    request = {"folder": str(folder), "target": str(subject.folder), "batch": str(path), "make": None}
    request |= {"logits": str(scratch / "logits"), "saved": str(scratch / "saved"), "code": CODE}
    answer = ask(environment, "speculators_run.py", request)
    compare(environment, subject.name, f"{name} (speculators)", draft, batch, scratch / "logits")
    apart, config = differences(folder, scratch / "saved"), read_json(folder / "config.json")
    apart += ["through_library"] * (answer["through_library"] != config)
    apart += ["architectures"] * (answer["architectures"] != config["architectures"])
    shown = f"written by the library: {', '.join(apart) or 'every tensor and field as exported'}"
    results.add_figure(environment.versions, subject.name, f"{name} (speculators)", shown, not apart)
    assert not apart


def differences(ours: Path, theirs: Path) -> list[str]:
    """What the library wrote differently from the export: tensors to the bit, and fields of config.json.

    transformers makes the layers' config. It adds its defaults and keeps ``rope_theta`` only in ``rope_parameters``; it
    must have all other fields of the export.
    """
    one, other = (_bits(folder / "model.safetensors") for folder in (ours, theirs))
    apart = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    a, b = (read_json(folder / "config.json") for folder in (ours, theirs))
    layers, written = a.pop("transformer_layer_config"), b.pop("transformer_layer_config")
    named = (a.keys() | b.keys()) - {
        *exporter.DROPPED,
        "architectures",
    }  # a saved file has the name of the class
    apart += [f"config.{name}" for name in sorted(named) if a.get(name, ...) != b.get(name, ...)]
    written["rope_theta"] = written["rope_parameters"]["rope_theta"]
    return apart + [f"layers.{name}" for name, value in layers.items() if written.get(name, ...) != value]


def _bits(path: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """The type, shape and bits of every tensor."""
    tensors = load_file(path).items()
    return {n: (v.dtype, tuple(v.shape), v.view(torch.uint8).numpy().tobytes()) for n, v in tensors}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_library_computes_and_writes_what_was_exported(
    speculators, bench, export, tmp_path, name
) -> None:
    check(speculators, bench, name, export(bench.draft(name), "speculators"), tmp_path)


def test_the_library_computes_and_writes_the_draft_of_smollm2(speculators, smollm2, export, tmp_path) -> None:
    name = "DSpark of the quickstart"
    check(speculators, smollm2, name, export(smollm2.draft(name), "speculators"), tmp_path)


LAYERS = {
    "vocab_size": 272, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
BLOCK = {"aux_hidden_state_layer_ids": [1, 3], "mask_token_id": MASK}
EAGLE3 = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
LIBRARY: dict[str, tuple[str, str, dict]] = {
    "DSpark": ("dspark", "qwen3", BLOCK | {"block_size": 7, "markov_rank": 16}),
    "DSpark, reduced": ("dspark", "qwen3", BLOCK | {"block_size": 7, "markov_rank": 16, "draft_vocab_size": 91}),
    "DSpark, gated": ("dspark", "qwen3", BLOCK | {"block_size": 7, "markov_rank": 16, "markov_head_type": "gated"}),
    "DSpark, rnn": ("dspark", "qwen3", BLOCK | {"block_size": 7, "markov_rank": 16, "markov_head_type": "rnn"}),
    "DFlash": ("dflash", "qwen3", BLOCK | {"block_size": 8, "sliding_window_non_causal": True}),
    "Eagle3": ("eagle3", "llama", EAGLE3),
    "Eagle3, reduced": ("eagle3", "llama", EAGLE3 | {"draft_vocab_size": 91}),
    "Eagle3, Qwen3": ("eagle3", "qwen3", EAGLE3 | {"norm_before_residual": False}),
}  # fmt: skip


def asked_config(kind: str, layer: str, fields: dict) -> dict:
    """The config of a new draft of the library; fields that are not set here have its defaults."""
    depth = 1 if kind == "eagle3" else 2
    drafts = {"dspark": 7, "dflash": 7, "eagle3": 3}[kind]
    greedy = {"proposal_type": "greedy", "speculative_tokens": drafts}
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": LAYERS | {"model_type": layer, "num_hidden_layers": depth},
        "draft_vocab_size": LAYERS["vocab_size"],
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"name_or_path": None, "architectures": ["Qwen3ForCausalLM"]},
        },
    } | fields


@pytest.mark.parametrize("name", LIBRARY)
def test_draftline_reads_what_the_library_trained(speculators, bench, tmp_path, name: str) -> None:
    kind, layer, fields = LIBRARY[name]
    ids = torch.arange(0, 271, 3) if "draft_vocab_size" in fields else None
    taps = [
        tap - 1
        for tap in fields.get("aux_hidden_state_layer_ids") or EAGLE3["eagle_aux_hidden_state_layer_ids"]
    ]
    batch, path = sample(bench, taps, tmp_path, ids)
    made = {"kind": kind, "steps": 3, "config": asked_config(kind, layer, fields)}
    request = {
        "folder": str(tmp_path / "draft"),
        "batch": str(path),
        "logits": str(tmp_path / "logits"),
        "make": made,
    }
    ask(speculators, "speculators_run.py", request)
    draft = checkpoint.load(tmp_path / "draft", bench.tensors)
    assert draft.config.target_layer_ids == taps
    compare(speculators, bench.name, f"{name}, trained by the library", draft, batch, tmp_path / "logits")
