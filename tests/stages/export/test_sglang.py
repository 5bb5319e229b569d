"""What SGLang is given: DSpark and DFlash native, Eagle3 with taps that count layers, what its scheduler reads."""

from pathlib import Path

import pytest
from tiny_export_store import TEMPERATURES, calibrate, configured, evaluate, store_with_a_draft
from tiny_exports import make, saved

from data_specs.manifest import read_json
from data_specs.results.summary import PositionQuality
from stages.export import run
from stages.export.serve import Served, command
from stages.export.sglang import plan, serve
from stages.export.source import facts_of

COSTS = {
    "name": "here", "machine": "a CPU", "model": "tiny", "source": "measured", "note": "by a test", "context": 0,
    "position_seconds": 0.0,
    "points": [{"tokens": 1, "steps_per_second": 10.0}, {"tokens": 16, "steps_per_second": 4.0},
               {"tokens": 32, "steps_per_second": 2.0}],
    "draft": [{"requests": 1, "seconds": 0.1}, {"requests": 3, "seconds": 0.2}],
}  # fmt: skip
STS_OPTION = "--speculative-dspark-confidence-sts-path"
SPS_OPTION = "--speculative-dspark-sps-table-path"


def quality(ece: float) -> PositionQuality:
    return PositionQuality(30, ece, 0.1, None, [None] * 20, [None] * 20, [0] * 20)


def test_eagle3_counts_layers(tmp_path: Path) -> None:
    config = plan(saved("eagle3_llama", tmp_path)[1]).config
    taps = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["eagle_config"] == taps
    assert "eagle_aux_hidden_state_layer_ids" not in config


def test_block_drafts_are_native(tmp_path: Path) -> None:
    config = plan(saved("dspark_rnn", tmp_path)[1]).config
    assert (config["architectures"], config["markov_head_type"]) == (["Qwen3DSparkModel"], "rnn")
    assert config["target_layer_ids"] == [0, 2]


@pytest.mark.parametrize(
    ("name", "kind", "chain"),
    [
        ("dspark", "DSPARK", ""), ("dflash_fill_in", "DFLASH", ""),
        ("eagle3_llama", "EAGLE3", " --speculative-num-steps 7 --speculative-eagle-topk 1"),
    ],
)  # fmt: skip
def test_the_command_counts_the_anchor_too(name: str, kind: str, chain: str) -> None:
    assert serve(facts_of(make(name).config), "org/target", "there") == [
        f"python -m sglang.launch_server --model-path org/target --speculative-algorithm {kind} "
        f"--speculative-draft-model-path there{chain} --speculative-num-draft-tokens 8"
    ]


def exported(tmp_path, target, form="sglang", name="dspark", costs=COSTS, calibrated=True):
    store, draft = store_with_a_draft(tmp_path, target, name)
    if calibrated:
        calibrate(draft.path, before=[quality(0.2)] * 7, after=[quality(0.1)] * 7)
    evaluate(store, costs=costs)
    return run.run_export(configured(store, form), store, draft)[0]


def test_the_files_hold_what_its_source_reads(tmp_path, target_folder):
    made = exported(tmp_path, target_folder)
    assert {"sglang_sts.json", "sglang_sps.json"} <= set(made.manifest.files)
    assert read_json(made.path / "sglang_sts.json") == {
        "temperatures": TEMPERATURES, "dataset": "quickstart", "num_samples": 30, "ece_before": [0.2] * 7,
        "ece_after": [0.1] * 7,
    }  # fmt: skip
    found = read_json(made.path / "sglang_sps.json")
    assert set(found) == {"sample_batch_tokens", "sample_steps_per_sec", "max_batch_tokens"}
    assert (found["sample_batch_tokens"], found["max_batch_tokens"]) == ([1, 16, 32], 32)
    # Eight tokens a request: one, two and four requests, whose draft passes take 0.1, 0.15 and (as of three) 0.2 s.
    expected = [1 / (0.1 + 0.1), 1 / (0.25 + 0.15), 1 / (0.5 + 0.2)]
    assert found["sample_steps_per_sec"] == pytest.approx(expected)


def test_commands_name_the_files_that_are_there(tmp_path, target_folder, capsys):
    made = exported(tmp_path, target_folder)
    printed = " ".join(capsys.readouterr().out.split())
    words = command(Served("sglang", str(made.path)), "org/target", [])
    for option, name in ((STS_OPTION, "sglang_sts.json"), (SPS_OPTION, "sglang_sps.json")):
        assert words[words.index(option) + 1] == f"{made.path}/{name}"
        assert f"{option} {made.path}/{name}".replace(" ", "") in printed.replace(" ", "")


@pytest.mark.parametrize(
    "changes,files",
    [
        ({"calibrated": False}, {"sglang_sps.json"}),
        ({"costs": None}, {"sglang_sts.json"}),
        ({"form": "vllm"}, set()),
        ({"name": "dflash"}, set()),
    ],
)
def test_nothing_is_written_that_is_not_known_or_not_read(tmp_path, target_folder, changes, files):
    made = exported(tmp_path, target_folder, **changes)
    assert {name for name in made.manifest.files if name.startswith("sglang_")} == files
    engine = changes.get("form", "sglang")
    words = command(Served(engine, str(made.path)), "org/target", [])
    assert (STS_OPTION in words) is ("sglang_sts.json" in files)
    assert (SPS_OPTION in words) is ("sglang_sps.json" in files)


def test_a_measured_table_makes_another_export(tmp_path, target_folder):
    store, draft = store_with_a_draft(tmp_path, target_folder)
    first = run.run_export(configured(store, "sglang"), store, draft)[0]
    evaluate(store, costs=COSTS)
    second = run.run_export(configured(store, "sglang"), store, draft)[0]
    assert "sglang_sps.json" in second.manifest.files and "sglang_sps.json" not in first.manifest.files
