import json
import os
from pathlib import Path

import pytest
import torch
from tiny_errors import refused
from tiny_export_store import (
    SAYS,
    TEMPERATURES,
    calibrate,
    configured,
    evaluate,
    every_byte,
    store_with_a_draft,
)

from data_specs.calibration import (
    draft_contents,
    read_calibration,
)
from data_specs.errors import UserError
from data_specs.manifest import read_json
from pipeline.drafts.folders import checkpoint
from stages.export import run
from stages.export.serve import Served, command


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
    assert "Reusing the export tiny_dspark_vllm:v0" in capsys.readouterr().out
    calibrate(draft.path, temperatures=[2.0] * 7)
    assert run.run_export(configured(store, "vllm"), store, draft)[0].reference == "tiny_dspark_vllm:v1"


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


@pytest.mark.parametrize("left", [".model.safetensors.17.tmp", ".config.json.1f.tmp", "manifest.json"])
def test_bytes_are_those_of_the_committed_files(tmp_path, target_folder, left: str) -> None:
    """A killed run leaves files that are not committed."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "provenance", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.run_export(configured(store, "vllm"), store, draft)
    (partial,) = (store.root / "export" / "tiny_dspark_vllm").glob(".partial-*")
    (partial / left).write_bytes(bytes(5164))
    artifact = run.run_export(configured(store, "vllm"), store, draft)[0]
    assert artifact.manifest.counts["bytes"] == sum(file.size for file in artifact.manifest.files.values())


def test_an_export_that_would_not_read_back_is_not_committed(tmp_path, target_folder, monkeypatch) -> None:
    """The written folder is compared with the draft, whatever the plan said."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    plan = run.PLANS["vllm"]

    def other(change):
        monkeypatch.setitem(run.PLANS, "vllm", lambda source: change(plan(source)))

    other(lambda layout: layout.tensors["norm.weight"].add_(1) is None or layout)
    other(lambda layout: type(layout)(layout.config | {"target_layer_ids": [0, 1]}, layout.tensors))
    with refused(UserError, "taps=(0, 1)", "taps=(0, 2)"):
        run.run_export(configured(store, "vllm"), store, draft)
    other(lambda layout: type(layout)(layout.config, layout.tensors | {"fc.weight": torch.ones(32, 64)}))
    with refused(UserError, "fc.weight"):
        run.run_export(configured(store, "vllm"), store, draft)
    assert not store.list("export")


def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, target_folder) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "dspark_gated")
    with refused(UserError, "export=llama_cpp", "drafter.markov_head"):
        run.run_export(configured(store, "sglang", "llama_cpp"), store, draft)
    assert not (store.root / "export").exists()


def test_no_command_is_given_that_vllm_would_refuse(tmp_path, target_folder, capsys) -> None:
    store, draft = store_with_a_draft(tmp_path, target_folder, "dspark_rnn")
    run.run_export(configured(store, "speculators"), store, draft)
    printed = capsys.readouterr().out
    assert "vllm serve" not in printed
    assert (
        "vLLM, which serves this format, does not serve this draft: its reader has only the vanilla"
        in printed
    )


SAMPLED = {"temperature": 1.0, "draft_sampling": "target"}
MODES = {"temperature": 1.0, "draft_sampling": "greedy"}


@pytest.mark.parametrize(
    "sampler,told,method",
    [
        (None, None, None), ({}, "greedy", "greedy"), (MODES, "greedy", "greedy"),
        (SAMPLED, "target", "probabilistic"), ({"temperature": 1.0}, "target", "probabilistic"),
    ],
)  # fmt: skip
def test_drafts_are_served_as_they_were_evaluated(
    tmp_path, target_folder, capsys, sampler: dict | None, told: str | None, method: str | None
) -> None:
    """vLLM is told; of llama.cpp, which has one way, it is said where the evaluation took the other."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    if sampler is not None:
        evaluate(store, **sampler)
    printed = {}
    for form in ("vllm", "speculators", "llama_cpp"):
        made = run.run_export(configured(store, form), store, draft)[0]
        assert read_json(made.path / "provenance.json")["draft_sampling"] == told
        printed[form] = capsys.readouterr().out
        if form != "llama_cpp":
            words = command(Served("vllm", str(made.path)), "org/target", [])
            options = json.loads(words[words.index("--speculative-config") + 1])
            assert options.get("draft_sample_method") == method
            assert json.dumps(options) in printed[form]
            assert "enable_adaptive_verification" not in options
    assert ("evaluate.draft_sampling=greedy" in printed["llama_cpp"]) is (told == "target")


def test_another_way_of_drafting_makes_another_export(tmp_path, target_folder) -> None:
    """And an import takes it along."""
    store, draft = store_with_a_draft(tmp_path, target_folder)
    evaluate(store, **SAMPLED)
    first = run.run_export(configured(store, "vllm"), store, draft)[0]
    evaluate(store, **MODES)
    config = configured(store, "vllm")
    config.evaluation = "tiny_dspark:v1"  # both were made in the same second
    second = run.run_export(config, store, draft)[0]
    assert (first.reference, second.reference) == ("tiny_dspark_vllm:v0", "tiny_dspark_vllm:v1")
    again = run.run_export(configured(store, "hub", name="again"), store, first.path)[0]
    assert read_json(again.path / "provenance.json")["draft_sampling"] == "target"
