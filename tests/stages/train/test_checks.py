"""What a training will need: tensors, draft, cache, and the bytes of its checkpoints."""

import dataclasses

from pipeline.preflight import Ahead
from stages.train.checks import checks


def states(config) -> dict[str, str]:
    return {check.name: check.state for check in checks(Ahead(config))}


def test_a_cache_that_is_there_is_held_against_the_run(cached) -> None:
    config = cached.config()
    found = checks(Ahead(config))
    assert [check.state for check in found] == ["ok", "ok", "ok"]
    assert found[1].found == "tiny_chat:v0, 5 samples to train on"
    config.target.dtype = "bfloat16"
    assert states(config)["cache to train on"] == "problem"
    assert states(dataclasses.replace(config, cache="other"))["cache to train on"] == "problem"


def test_a_target_without_a_tensor_is_a_problem(cached, tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    config = cached.config()
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in cached.target.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.target.path = str(folder)
    found = checks(Ahead(config))
    assert found[0].state == "problem" and "model.norm.weight" in found[0].found


def test_checkpoints_count_once(cached) -> None:
    """What a killed run has left is not needed any more."""
    config = cached.config(steps=6, checkpoint_every=3, keep_checkpoints=4)
    whole = checks(Ahead(config))[-1].least_bytes
    left = cached.store.work_folder("draft", "tiny_dspark", "f" * 64) / "run"
    left.mkdir(parents=True)
    (left / "state").write_bytes(b"x" * 1000)
    assert checks(Ahead(config))[-1].least_bytes == whole - 1000
    trainable = int(checks(Ahead(config))[0].found.rpartition(" parameters")[0].split()[-1].replace(",", ""))
    more = cached.config(steps=7, checkpoint_every=3, keep_checkpoints=4)
    assert checks(Ahead(more))[-1].least_bytes - (whole - 1000) == 4 * 3 * trainable, "one checkpoint more"
