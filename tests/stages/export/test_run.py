"""The stage: artifacts, what travels along, what never does, and what is refused by name."""

import json
import os
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_exports import make

from data_specs.calibration import (
    Calibration,
    CalibrationFileError,
    draft_contents,
    read_calibration,
    write_calibration,
)
from data_specs.errors import UserError
from data_specs.manifest import read_json
from pipeline import __main__ as entry
from pipeline.config import (
    Config,
    ConfigError,
    ExportConfig,
    StageConfig,
    TrainConfig,
)
from pipeline.drafts.folders import checkpoint
from pipeline.store.artifacts import Artifact, Store
from stages.export import lineage, run, speculators
from stages.export.adopt import run_import

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
        folder, Calibration(data=data, made_with="f", keys=keys, before=[], after=[], **made, **about)
    )


def evaluate(store: Store, draft: str = "draft-print") -> None:
    work = store.begin("evaluation", "tiny_dspark", 1, "eval-print", {"draft": draft}, {
        "evaluate": {"max_new_tokens": 64}, "sampler": {"temperature": 0.0}, "target": {"dtype": "float32"},
    })  # fmt: skip
    metrics = {
        "accepted_length": FIGURE,
        "acceptance_rate": {"value": 0.31, "interval": None},
        "speedup": FIGURE,
    }
    benchmark = {"counts": {"prompts": 5}, "metrics": metrics}
    none = {"counts": {"prompts": 0, "too_long": 3}, "metrics": None}
    summary = {"benchmarks": {"gsm8k": benchmark, "long": none}, "macro": metrics}
    (work.path / "summary.json").write_text(json.dumps(summary))
    store.commit(work, {"prompts": 5})


def every_byte(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_exports_are_artifacts_without_a_path_of_this_machine(
    tmp_path, target_folder, monkeypatch, capsys
) -> None:
    """Must hold 3, in all formats at once; a second run finds them."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    calibrate(draft.path)
    evaluate(store)
    (tmp_path / "convert.py").write_text(SAYS)
    monkeypatch.setattr(run.console, "panel", lambda title, lines: print(title, *lines, sep="\n"))
    formats = ("vllm", "sglang", "llama_cpp", "mlx", "speculators", "hub")
    config = configured(store, *formats, converter=str(tmp_path / "convert.py"))
    made = run.run_export(config, store, draft)
    assert [a.reference for a in made] == [f"tiny_dspark_{form}:v0" for form in formats]
    for artifact in made:
        artifact.verify()
        assert artifact.manifest.parents["draft"] == "draft-print"
        text = every_byte(artifact.path)
        for place in (tmp_path, Path.home(), target_folder, Path(os.getcwd())):
            assert str(place).encode() not in text, (artifact.reference, place)
        assert b"the-target" not in text, "_name_or_path"
        assert read_calibration(artifact.path, draft_contents(artifact.path), 7).temperatures == TEMPERATURES
        said = read_json(artifact.path / "provenance.json")
        assert said["draft"] == {"reference": "tiny_dspark:v0", "fingerprint": "draft-print"}
        assert said["ancestors"]["cache"]["reference"] == "tiny_data:v0"
        assert said["target"] == {
            "name": "tiny", "hub_id": None, "revision": None, "identity": "1d" * 32, "tokenizer": "70" * 32,
        }  # fmt: skip
    printed = capsys.readouterr().out
    assert "vllm serve TARGET --speculative-config" in printed and '"num_speculative_tokens": 7' in printed
    assert "--speculative-algorithm DSPARK" in printed and "--speculative-num-draft-tokens 8" in printed
    assert "--spec-type draft-dspark --spec-draft-n-max 7" in printed
    assert run.run_export(config, store, draft) == made
    assert "export tiny_dspark_vllm:v0 is already there" in capsys.readouterr().out
    calibrate(draft.path, temperatures=[2.0] * 7)
    assert run.run_export(configured(store, "vllm"), store, draft)[0].reference == "tiny_dspark_vllm:v1"


@pytest.mark.parametrize(
    "place",
    ["{root}/artifacts/draft", "/models/elsewhere/shard-1", "/caches/draftline/targets/t", "/hub/models--a"],
)
def test_a_path_that_would_leave_is_named(tmp_path, monkeypatch, place: str) -> None:
    """The store, the lineage's own target, and where located targets lie."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", "/hub")
    store, draft = store_with_a_draft(tmp_path, "/models/elsewhere")
    calibrate(draft.path, data=place.format(root=tmp_path))
    with pytest.raises(UserError, match=r"calibration\.json: holds the path .* of this machine"):
        run.run_export(configured(store, "vllm"), store, draft)
    assert not store.list("export")


def test_a_name_that_only_looks_like_a_path_may_leave(tmp_path) -> None:
    (tmp_path / "README.md").write_text("org/data, /dataset, model.data")
    lineage.check_no_paths(tmp_path, [b"/data"])
    (tmp_path / "README.md").write_text('"/data/x"')
    with pytest.raises(UserError, match="README.md: holds the path /data of this machine"):
        lineage.check_no_paths(tmp_path, [b"/data"])


@pytest.mark.parametrize(
    "path,shown",
    [
        ("org/prompts", "org/prompts"),
        ("gsm8k", "gsm8k"),
        ("prompts/mine.jsonl", "mine.jsonl"),
        ("secret/customer/prompts", "prompts"),
        ("/data/customer", "customer"),
        ("~/prompts", "prompts"),
    ],
)
def test_of_a_local_source_the_name_is_told(path: str, shown: str) -> None:
    assert lineage.public({"path": path}) == shown


def test_another_drafts_calibration_is_refused(tmp_path, target_folder) -> None:
    """Stamped anew it would scale the confidences of a draft that it was never fitted on."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    for changes, message in (
        ({"draft": "0" * 64}, "made for another draft"),
        ({"temperatures": [1.0]}, "expected 7"),
    ):
        calibrate(draft.path, **changes)
        with pytest.raises(CalibrationFileError, match=rf"calibration\.json: .*{message}"):
            run.run_export(configured(store, "vllm"), store, draft)
        with pytest.raises(CalibrationFileError, match=rf"calibration\.json: .*{message}"):
            run_import(configured(store, "vllm"), store, draft.path)
    assert not store.list("export") and len(store.list("draft")) == 1


def test_plan_writes_nothing(tmp_path, target_folder, capsys) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    config = configured(store, "vllm", "mlx")
    config.plan = True
    assert run.run_export(config, store, draft) == [] and not (store.root / "export").exists()
    assert "Qwen3DSparkModel" in capsys.readouterr().out


def test_a_killed_export_is_made_whole(tmp_path, target_folder) -> None:
    """What a killed run left behind is written again: only provenance.json says that the rest is there."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "provenance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.run_export(configured(store, "vllm"), store, draft)
    (partial,) = (store.root / "export" / "tiny_dspark_vllm").glob(".partial-*")
    (partial / "config.json").write_text("half a")
    artifact = run.run_export(configured(store, "vllm"), store, draft)[0]
    artifact.verify()
    assert checkpoint.read_config(artifact.path).block_size == 7


# --- what a checkpoint must not be (Must hold 2), at export and at import -----------------------------------------


def edit(folder: Path, fields: dict, tensors: dict) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    values = load_file(folder / "model.safetensors") | tensors
    save_file({k: v for k, v in values.items() if v is not None}, folder / "model.safetensors")


DAMAGE = [
    ({}, {"fc.weight": None}, r"tensor fc\.weight .*\(32, 64\)"),
    ({}, {"fc.bias": torch.ones(2)}, r"tensor fc\.bias is not part of this draft"),
    ({}, {"norm.weight": torch.ones(31)}, r"tensor norm\.weight: expected shape \(32,\), got \(31,\)"),
    (
        {},
        {"markov_head.markov_w2.weight": torch.zeros(272, 64)},
        r"tensor markov_head\.markov_w2\.weight is all zero",
    ),
    ({"target_layer_ids": ...}, {}, "field target_layer_ids is missing"),
    ({"target_layer_ids": []}, {}, "field target_layer_ids: expected at least one layer"),
    ({"mask_token_id": 272}, {}, "field mask_token_id: expected a row below 272, got 272"),
    (
        {"sample_from_anchor": False},
        {},
        "fields sample_from_anchor and dspark_bonus_anchor contradict each other",
    ),
    ({"zero_markov_head": True}, {}, "field zero_markov_head is true: expected the tensors .*, all zero"),
]


@pytest.mark.parametrize("fields,tensors,message", DAMAGE)
def test_a_damaged_draft_is_refused_by_name(tmp_path, fields: dict, tensors: dict, message: str) -> None:
    folder, store = tmp_path / "draft", Store(tmp_path / "artifacts")
    checkpoint.save(make("dspark"), folder)
    edit(folder, fields, tensors)
    config = configured(store, "vllm", "hub")
    with pytest.raises(UserError, match=message):
        run.run_export(config, store, folder)
    with pytest.raises(UserError, match=message):
        run_import(config, store, folder)
    assert not store.list()


def test_an_export_that_would_not_read_back_is_not_committed(tmp_path, target_folder, monkeypatch) -> None:
    """The written folder is compared with the draft, whatever the plan said."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    plan = run.PLANS["vllm"]

    def other(change):
        monkeypatch.setitem(run.PLANS, "vllm", lambda source: change(plan(source)))

    other(lambda layout: layout.tensors["norm.weight"].add_(1) is None or layout)
    other(lambda layout: type(layout)(layout.config | {"target_layer_ids": [0, 1]}, layout.tensors))
    with pytest.raises(UserError, match="reads back as another draft"):
        run.run_export(configured(store, "vllm"), store, draft)
    other(lambda layout: type(layout)(layout.config, layout.tensors | {"fc.weight": torch.ones(32, 64)}))
    with pytest.raises(UserError, match=r"tensor fc\.weight does not read back as it was"):
        run.run_export(configured(store, "vllm"), store, draft)
    assert not store.list("export")


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "dspark_gated")
    with pytest.raises(UserError, match="export=llama_cpp: its reader has only the vanilla Markov head"):
        run.run_export(configured(store, "sglang", "llama_cpp"), store, draft)
    assert not (store.root / "export").exists()


# --- llama.cpp's converter ----------------------------------------------------------------------------------------


def test_gguf_files_come_from_the_converter(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "convert.py").write_text(SAYS)
    config = configured(store, "llama_cpp", converter=str(tmp_path / "convert.py"), outtype="f32")
    artifact = run.run_export(config, store, draft)[0]
    said = (artifact.path / "draft.gguf").read_text().split()
    assert said[2:] == [
        "--target-model-dir", target_folder.name, "--model-name", "tiny_dspark", "--outtype", "f32", "--outfile",
        ".draft.gguf.tmp",
    ]  # fmt: skip
    assert f"GGUF {target_folder.name} --outtype f32" in (artifact.path / "target.gguf").read_text()
    assert artifact.manifest.config["gguf"] == "f32"


def test_the_converter_may_be_a_checkout(tmp_path, target_folder, capsys) -> None:
    """Files that are converted are served as they are."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "llama.cpp").mkdir()
    (tmp_path / "llama.cpp" / "convert_hf_to_gguf.py").write_text(SAYS)
    artifact = run.run_export(
        configured(store, "llama_cpp", converter=str(tmp_path / "llama.cpp")), store, draft
    )[0]
    assert {"draft.gguf", "target.gguf"} <= artifact.manifest.files.keys()
    printed = capsys.readouterr().out
    assert "llama-server -m" in printed and "convert_hf_to_gguf.py" not in printed


@pytest.mark.parametrize(
    "changes,message",
    [
        (
            {"converter": "none.py"},
            r"export\.converter=none\.py: expected llama\.cpp's convert_hf_to_gguf\.py",
        ),
        ({"converter": "."}, r"export\.converter=convert_hf_to_gguf\.py: expected .* or its checkout"),
        ({"converter": "fail.py"}, r"(?s)draft\.gguf: it ended with 1 and wrote nothing:.*no such tokenizer"),
        ({"converter": "convert.py", "python": "/no/python"}, "export.python=/no/python: No such file"),
    ],
)
def test_a_converter_that_fails_says_why(
    tmp_path, target_folder, monkeypatch, changes: dict, message: str
) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    (tmp_path / "convert.py").write_text(SAYS)
    (tmp_path / "fail.py").write_text("import sys; sys.exit('line one\\nno such tokenizer')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        run.run_export(configured(store, "llama_cpp", **changes), store, draft)
    assert not store.list("export")


# --- the Hub ------------------------------------------------------------------------------------------------------


class FakeApi:
    """Remembers what would have been uploaded."""

    calls: list[tuple] = []

    def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> None:
        self.calls.append(("create", repo_id, private))

    def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> None:
        self.calls.append(("upload", repo_id, sorted(p.name for p in Path(folder_path).iterdir())))


def test_the_card_tells_what_was_measured_and_how_to_serve(tmp_path, target_folder, monkeypatch) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    calibrate(draft.path)
    evaluate(store)
    monkeypatch.chdir(tmp_path)  # what lies here must not change what the card says
    (tmp_path / "tiny-dspark").mkdir()
    (tmp_path / "tiny-dspark" / "draft.gguf").touch()
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    FakeApi.calls = []
    settings = {"target": "org/target", "repo": "me/tiny-dspark", "license": "mit"}
    artifact = run.run_export(configured(store, "hub", **settings), store, draft)[0]
    assert FakeApi.calls == [], "nothing leaves without push"
    card = (artifact.path / "README.md").read_text()
    assert card.startswith(
        "---\nlicense: mit\nbase_model: org/target\ntags:\n- speculative-decoding\n- draft-model\n- dspark\n"
    )
    for line in (
        "| target's identity | `1d1d1d1d1d1d1d1d` |",
        "| source | prompts.jsonl |",
        "| source | org/prompts at abc |",
        "| steps | 30 |",
        "| gsm8k | 5 | 2.50 [2.25, 2.75] | 31 % | 2.50 [2.25, 2.75] |",
        "| long | 0 | - | - | - |",
        "| trained on samples of at most | 512 tokens |",
        "draft of a block: 1.00, 0.50, 1.50, 1.00, 1.00, 1.00, 2.00. Fitted on 12 held-out prompts of quickstart;",
        "python convert_hf_to_gguf.py tiny-dspark --target-model-dir tiny --outfile tiny-dspark/draft.gguf",
        "python -m sglang.launch_server --model-path org/target --speculative-algorithm DSPARK "
        "--speculative-draft-model-path me/tiny-dspark --speculative-num-draft-tokens 8",
        "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve org/target --speculative-config "
        '\'{"method": "dspark", "model": "me/tiny-dspark", "num_speculative_tokens": 7}\'',
        "mlx-dspark serve --mode dspark --model org/target --drafter me/tiny-dspark --drafter-bits 0",
        "hf download me/tiny-dspark --local-dir tiny-dspark",
        "- this draft: mit",
    ):
        assert line in card, line
    assert artifact.manifest.parents == {"draft": "draft-print", "evaluation": "eval-print"}
    run.run_export(configured(store, "hub", **settings, push=True, private=False), store, draft)
    files = [
        "README.md",
        "calibration.json",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "provenance.json",
    ]
    assert FakeApi.calls == [("create", "me/tiny-dspark", False), ("upload", "me/tiny-dspark", files)]


def test_the_card_names_the_revision_of_the_target(tmp_path) -> None:
    """The commit that was captured, where the target came from the Hub; nothing where it is another's."""
    store, draft = store_with_a_draft(tmp_path, "org/target", commit="c0" * 20)
    artifact = run.run_export(configured(store, "hub"), store, draft)[0]
    assert f"| target | org/target at revision {'c0' * 20} |" in (artifact.path / "README.md").read_text()
    assert read_json(artifact.path / "provenance.json")["target"]["revision"] == "c0" * 20
    manifests = lineage.ancestors(store, draft)
    assert lineage.known_target(manifests, {}, "other/target").revision is None


def test_an_evaluation_of_another_draft_is_refused(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder)
    evaluate(store, "another draft")
    config = configured(store, "hub")
    config.evaluation = "tiny_dspark"
    with pytest.raises(
        UserError, match="evaluation=tiny_dspark: tiny_dspark:v0 is not of the draft tiny_dspark"
    ):
        run.run_export(config, store, draft)
    assert not store.list("export")


def test_a_card_says_what_no_engine_reads(tmp_path, target_folder, capsys) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "mtp")
    artifact = run.run_export(configured(store, "hub"), store, draft)[0]
    card = (artifact.path / "README.md").read_text()
    assert card.count("not with this draft. No engine reads an MTP module of its own") == 4
    assert "Not measured yet" in card and "no calibration.json" in card and "license: other" in card
    assert "No engine reads this draft yet" in capsys.readouterr().out


def test_no_command_is_given_that_vllm_would_refuse(tmp_path, target_folder, capsys) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "dspark_rnn")
    run.run_export(configured(store, "speculators"), store, draft)
    printed = capsys.readouterr().out
    assert "vllm serve" not in printed
    assert (
        "vLLM, which serves this format, does not serve this draft: its reader has only the vanilla"
        in printed
    )


# --- speculators' own library -------------------------------------------------------------------------------------


def test_the_library_is_asked_where_it_is_installed(tmp_path, target_folder, monkeypatch) -> None:
    """A stand-in with the library's interface (the real one: tests/engines); a disagreement is named."""
    package = tmp_path / "site" / "speculators"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    store, draft = store_with_a_draft(tmp_path, target_folder)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    artifact = run.run_export(configured(store, "speculators"), store, draft)[0]
    assert read_json(artifact.path / "config.json")["seen_by"] == "the library"
    layout = run.plan("speculators", run.make_job(configured(store, "speculators"), store, draft))
    layout.tensors["more.weight"] = torch.ones(1)
    with pytest.raises(ConfigError, match=r"disagrees about the tensors \['more\.weight'\]"):
        speculators.through_library(layout)
    monkeypatch.delitem(sys.modules, "speculators")


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


# --- the entry: names, folders, import ----------------------------------------------------------------------------


def test_draft_may_be_an_export_and_import_gives_the_draft_back(tmp_path, target_folder) -> None:
    """export -> stage=import -> export: the same files; ``draft=`` takes the folder of an export as it is."""
    store, draft = store_with_a_draft(tmp_path, target_folder, "dflash")
    config = configured(store, "vllm")
    config.draft, config.train = "tiny_dflash", TrainConfig(steps=1)
    entry.run(config)
    first = store.resolve("export", "tiny_dflash_vllm")
    importing = configured(store, "vllm", name="brought_back")
    importing.stage, importing.draft = StageConfig("import", ["import"]), str(first.path)
    entry.run(importing)
    back = store.resolve("draft", "brought_back")
    back.verify()
    assert checkpoint.read_config(back.path).markov_rank == 0, "the head of zeros is off again"
    again = configured(store, "vllm", name="again")
    again.draft = "brought_back"
    entry.run(again)
    direct = configured(store, "vllm", name="direct")
    direct.draft = str(first.path)
    entry.run(direct)
    for name in ("again", "direct"):
        other = store.resolve("export", name)
        for file in ("config.json", "model.safetensors"):
            assert other.manifest.files[file] == first.manifest.files[file], (name, file)
    importing.export.name = None
    entry.run(importing)
    assert len(store.list("draft")) == 2, "found again"


def test_an_import_keeps_calibration_and_lineage(tmp_path, target_folder) -> None:
    """On a machine that never saw the training: an export of the import still knows target and data."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    calibrate(draft.path)
    first = run.run_export(configured(store, "hub", target="org/target"), store, draft)[0]
    other = Store(tmp_path / "elsewhere")
    for _ in range(2):  # found again
        back = run_import(configured(other, "hub"), other, first.path)
    assert back is not None and len(other.list("draft")) == 1
    back.verify()
    assert read_calibration(back.path, draft_contents(back.path), 7).temperatures == TEMPERATURES
    again = run.run_export(configured(other, "hub"), other, back)[0]
    said, before = (read_json(one.path / "provenance.json") for one in (again, first))
    assert said["draft"] == {"reference": back.reference, "fingerprint": back.manifest.fingerprint}
    assert {name: said[name] for name in ("ancestors", "target", "training")} == {
        name: before[name] for name in ("ancestors", "target", "training")
    }
    assert said["target"]["hub_id"] == "org/target" and said["training"]["sources"][1] == "org/prompts at abc"
    card = (again.path / "README.md").read_text()
    for line in ("base_model: org/target", "| source | prompts.jsonl |", "| steps | 30 |", "Fitted on 12"):
        assert line in card, line
    calibrate(back.path, temperatures=[3.0] * 7)
    run_import(configured(other, "hub"), other, first.path)
    assert read_calibration(back.path, draft_contents(back.path), 7).temperatures == [3.0] * 7, (
        "a newer one stays"
    )
    back.verify()


def test_import_wants_a_folder(tmp_path) -> None:
    config = configured(Store(tmp_path), "vllm")
    config.stage, config.draft = StageConfig("import", ["import"]), "nowhere"
    with pytest.raises(ConfigError, match="draft=nowhere: expected the folder of a draft"):
        entry.run(config)
