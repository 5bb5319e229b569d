import dataclasses
import json
from pathlib import Path

import pytest
import tiny
import tiny_targets
import torch
from tiny_capture_vllm import TAPS, WRONG, WorkerHere, by_vllm, captured, check_equal, config_of
from tiny_errors import refused

from data_specs.target_cache import CacheError
from pipeline.config import ConfigError
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact
from pipeline.target.model import Target
from pipeline.target.tensors import load_tensors
from stages.cache.capture import capture
from stages.cache.capture_vllm import VllmTarget, final_norm, numbering, vllm_target
from stages.cache.forecast import spec_of
from stages.cache.plan import PlannedSample


@pytest.mark.usefixtures("fake")
def test_the_cache_is_that_of_the_target_in_process(
    in_process: Artifact, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    config = by_vllm(target_folder, tmp_path / "store", table)
    config.target.tensor_parallel = 2  # of vLLM's own processes
    made = captured(config)
    check_equal(made, in_process)
    assert made.manifest.counts == in_process.manifest.counts | {"engine": "vllm 7.8.9"}
    assert made.manifest.config["capture"] == in_process.manifest.config["capture"] | {"engine": "vllm"}
    assert made.manifest.fingerprint != in_process.manifest.fingerprint
    assert [path.name for path in made.path.parent.iterdir()] == ["v0"]
    arguments = json.loads(table.with_suffix(".json").read_text())
    transfer = arguments.pop("kv_transfer_config")
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == (
        "CpuHiddenStates",
        "cpu_connector",
    )
    assert arguments == {
        "model": str(target_folder), "dtype": "float32", "tensor_parallel_size": 2, "trust_remote_code": False,
        "skip_tokenizer_init": True, "max_model_len": 24, "max_num_batched_tokens": 22, "max_num_seqs": 22,
        "enable_prefix_caching": False, "table": str(table), "fault": None,
        "speculative_config": {
            "method": "extract_hidden_states", "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("taps", "expected"),
    [
        ([3, -1, 0], ([0, 1, 4, 36], [2, 0, 1])),
        ([35, 1], ([2, 36], [1, 0])),
    ],
)
def test_layers_are_asked_for_in_the_order_that_vllm_gives_them(taps: list[int], expected: object) -> None:
    assert numbering(taps, 36) == expected


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gpt_oss"])
def test_the_final_norm_is_the_targets_own(family: str, tmp_path: Path) -> None:
    config = tiny.located(tiny_targets.save(family, tmp_path / family))
    weight, states = torch.rand(32) + 0.5, torch.randn(5, 3, 32)[:, 1]
    whole = Target.load(config, [0]).decoder.norm
    whole.weight.copy_(weight)
    made = final_norm(config, dataclasses.replace(load_tensors(config), final_norm=weight))
    assert torch.equal(made(states), whole(states))
    assert not torch.allclose(made(states), states, atol=0.1)


@pytest.mark.parametrize("fault", WRONG)
def test_states_that_are_not_the_samples_are_refused(
    fault: str, in_process: Artifact, target_folder: Path, tmp_path: Path, table: Path
) -> None:
    reader = CacheReader(in_process.path)
    samples = [
        PlannedSample(reader.keys[i], "train", reader.read(i).input_ids, torch.ones(1)) for i in (0, 1, 2)
    ]
    config = config_of(target_folder, tmp_path)
    worker = WorkerHere(tmp_path, table=str(table), fault=fault)
    target = VllmTarget(worker, config.target, load_tensors(config.target), TAPS)  # type: ignore[arg-type]
    for sample in samples[:2]:
        assert len(list(capture(target, [sample], reader.spec, 10))) == 1
    with refused(CacheError, *WRONG[fault]):
        list(capture(target, samples[2:], reader.spec, 10))


def test_a_target_of_several_streams_is_refused(tmp_path: Path) -> None:
    config = config_of(tiny_targets.save("deepseek_v4", tmp_path / "target"), tmp_path, source="vllm")
    config.target.taps = [0]
    spec = spec_of(config, load_tensors(config.target).config)
    with (
        refused(ConfigError, "capture.source=vllm", tmp_path / "target", 4),
        vllm_target(config, spec, tmp_path / "work", 20),
    ):
        pass
