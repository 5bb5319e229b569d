"""A store with a trained draft, its calibration and its evaluation, ready to be exported."""

import json
from pathlib import Path

import tiny_summary
import torch
from safetensors.torch import load_file, save_file
from tiny_exports import make

from data_specs.calibration import (
    Calibration,
    draft_contents,
    write_calibration,
)
from data_specs.results.summary import write_summary
from pipeline.config import (
    Config,
    ExportConfig,
    StageConfig,
)
from pipeline.drafts.folders import checkpoint
from pipeline.store.artifacts import Artifact, Store

SAYS = "\n".join(
    (
        "import sys, pathlib, json",
        "a = sys.argv[1:]",
        "if 'fail' in a[0]: sys.exit('line one\\nno such tokenizer')",
        "pathlib.Path(a[a.index('--outfile') + 1]).write_text('GGUF ' + ' '.join(pathlib.Path(x).name for x in a))",
    )
)


FIGURE = {"value": 2.5, "interval": [2.25, 2.75]}


def store_with_a_draft(
    root: Path, target: Path | str, name: str = "dspark", commit: str | None = None
) -> tuple[Store, Artifact]:
    """A draft as a training run leaves it, whose manifest names folders of this machine, and its lineage."""
    store = Store(root / "artifacts")
    about = {"identity": "1d" * 32, "tokenizer": "70" * 32, "name": "tiny"} | (
        {"commit": commit} if commit else {}
    )
    settings = {"target": about, "capture": {"max_length": 512}}
    work = store.begin("cache", "tiny_data", 1, "cache-print", {}, settings)
    store.commit(work, {"samples": 5})
    section = {"name": "tiny", "path": str(target), "revision": None, "thinking": False, "dtype": "float32"}
    sources = [
        {"path": str(root / "prompts.jsonl"), "revision": None},
        {"path": "org/prompts", "revision": "abc"},
    ]
    config = {"target": section, "data": {"name": "data", "sources": sources}, "artifacts": str(root)}
    work = store.begin("draft", f"tiny_{name}", 1, "draft-print", {"cache": "cache-print"}, config)
    checkpoint.save(make(name), work.path)
    edit(work.path, {"_name_or_path": "/models/the-target"}, {})  # as transformers writes it
    return store, store.commit(work, {"samples": 5, "steps": 30, "loss": 1.25})


def configured(store: Store, *formats: str, **export: object) -> Config:
    return Config(
        stage=StageConfig("export", ["export"]),
        artifacts=str(store.root),
        export=ExportConfig(formats=list(formats), **export),  # type: ignore[arg-type]
    )


TEMPERATURES = [1.0, 0.5, 1.5, 1.0, 1.0, 1.0, 2.0]


def calibrate(folder: Path, data: str = "quickstart", **changes: object) -> None:
    """As stage=evaluate leaves it beside the draft."""
    made = {"draft": draft_contents(folder), "temperatures": TEMPERATURES} | changes
    about = {
        "target": "1d" * 32,
        "sampler": {"temperature": 0.0},
        "dtype": "float32",
        "thinking": None,
        "rounds": 30,
    }
    keys = [f"{number:02d}" for number in range(12)]
    write_calibration(
        folder,
        Calibration(data=data, made_with="f", keys=keys, **({"before": [], "after": []} | made), **about),
    )


def evaluate(store: Store, draft: str = "draft-print", costs: dict | None = None, **sampler: object) -> None:
    """An evaluation of the draft; ``costs``: the measured steps a second that it holds."""
    sampler = {"temperature": 0.0} | sampler
    made = "eval-print" if sampler == {"temperature": 0.0} else f"eval-{sampler}"
    work = store.begin("evaluation", "tiny_dspark", 1, made, {"draft": draft}, {
        "evaluate": {"max_new_tokens": 64}, "sampler": sampler, "target": {"dtype": "float32"},
    })  # fmt: skip
    if costs is not None:
        (work.path / "sps.json").write_text(json.dumps(costs))
    summary = tiny_summary.summary(levels={"gsm8k": 1.0})
    measured = {
        "accepted_length": FIGURE,
        "acceptance_rate": {"value": 0.31, "interval": None},
        "speedup": FIGURE,
    }
    metrics = summary["benchmarks"]["gsm8k"]["metrics"] | measured
    summary["benchmarks"] = {
        "gsm8k": {"counts": {"prompts": 5}, "metrics": metrics, "finish": {}},
        "long": {"counts": {"prompts": 0, "too_long": 3}, "metrics": None, "finish": {}},
    }
    write_summary(work.path, tiny_summary.record(summary | {"macro": metrics}))
    store.commit(work, {"prompts": 5})


def every_byte(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def edit(folder: Path, fields: dict, tensors: dict) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    values = load_file(folder / "model.safetensors") | tensors
    save_file({k: v for k, v in values.items() if v is not None}, folder / "model.safetensors")


DAMAGE = [
    ({}, {"fc.weight": None}, ["fc.weight", (32, 64)]),
    ({}, {"fc.bias": torch.ones(2)}, ["fc.bias"]),
    ({}, {"norm.weight": torch.ones(31)}, ["norm.weight", (32,), (31,)]),
    ({}, {"markov_head.markov_w2.weight": torch.zeros(272, 64)}, ["markov_head.markov_w2.weight"]),
    ({"target_layer_ids": ...}, {}, ["target_layer_ids"]),
    ({"target_layer_ids": []}, {}, ["target_layer_ids", []]),
    ({"mask_token_id": 272}, {}, ["mask_token_id", 272]),
    ({"sample_from_anchor": False}, {}, ["sample_from_anchor", "dspark_bonus_anchor"]),
    ({"zero_markov_head": True}, {}, ["zero_markov_head", "'markov_head.markov_w2.weight'"]),
]


class FakeApi:
    """Remembers what would have been uploaded."""

    calls: list[tuple] = []

    def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create", repo_id, private))

    def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.calls.append(("upload", repo_id, sorted(p.name for p in Path(folder_path).iterdir())))


LIBRARY = """
import types, torch

class SpeculatorModelConfig(types.SimpleNamespace):
    @classmethod
    def from_dict(cls, values):
        made = cls(**values)
        made.transformer_layer_config = types.SimpleNamespace()
        return made
    def to_diff_dict(self):
        return {"seen_by": "the library"}

class Model:
    _keys_to_ignore_on_load_missing, _keys_to_ignore_on_save = ["embed_tokens.weight"], ["embed_tokens.weight"]
    def __init__(self, config):
        self.state = {"embed_tokens.weight": torch.zeros(1)}
    def load_state_dict(self, tensors, strict, assign):
        self.state |= tensors
        return types.SimpleNamespace(missing_keys=["embed_tokens.weight"],
                                     unexpected_keys=[n for n in tensors if n.startswith("more")])
    def state_dict(self):
        return self.state

class SpeculatorModel:
    @staticmethod
    def registered_model_class_from_config(config):
        return Model
"""
