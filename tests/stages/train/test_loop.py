import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open
from tiny_errors import refused

from data_specs.manifest import ManifestError, fingerprint
from pipeline.config import Config, ConfigError
from pipeline.drafts.folders import checkpoint
from pipeline.store.artifacts import Artifact, Store
from stages.train import loop, plan
from stages.train.record import read_lines


def partial(config: Config) -> Path:
    """The work folder of a run that has not finished."""
    (folder,) = Path(config.artifacts).glob("draft/*/.partial-*")
    return folder


@pytest.fixture(scope="module")
def trained(made_cache: Path, target_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """A finished run of 6 steps: (config, store, artifact)."""
    import tiny_cache

    root = tmp_path_factory.mktemp("trained") / "artifacts"
    shutil.copytree(made_cache, root)
    config, store = tiny_cache.train_config(target_folder, root, lr=3e-3), Store(root)
    artifact = loop.run_train(config, store, store.resolve("cache", "tiny_chat"))
    assert artifact is not None
    return config, store, artifact


def test_the_artifact_holds_the_draft_and_nothing_of_the_work(trained) -> None:
    _, store, artifact = trained
    assert sorted(artifact.manifest.files) == [
        "config.json", "last/config.json", "last/model.safetensors", "metrics.jsonl", "model.safetensors",
        "summary.json", "training.png",
    ]  # fmt: skip
    on_disk = {p.relative_to(artifact.path).as_posix() for p in artifact.path.rglob("*") if p.is_file()}
    assert on_disk == {*artifact.manifest.files, "manifest.json"}
    artifact.verify()
    assert artifact.reference == "tiny_dspark:v0"
    assert artifact.manifest.parents == {"cache": store.resolve("cache", "tiny_chat").manifest.fingerprint}
    made = store.resolve("cache", "tiny_chat").manifest.config["target"]
    assert artifact.manifest.config["target"]["chat_template"] == made["chat_template"]
    assert artifact.manifest.counts["steps"] == 6
    assert artifact.manifest.counts["trainable"] + 2 * 272 * 32 == artifact.manifest.counts["parameters"]


def test_the_draft_loads_and_is_the_best(trained) -> None:
    _, _, artifact = trained
    for folder in (artifact.path, artifact.path / "last"):
        draft = checkpoint.load(folder)
        assert (draft.config.block_size, draft.config.target_layer_ids, draft.config.mask_token_id) == (
            3,
            [0, 2],
            260,
        )
    lengths = {
        x["step"]: x["accepted_length"]
        for x in read_lines(artifact.path / "metrics.jsonl")
        if x["kind"] == "heldout"
    }
    assert sorted(lengths) == [3, 6]
    assert artifact.manifest.counts["best_step"] == max(lengths, key=lengths.get)
    assert artifact.manifest.counts["best_accepted_length"] == max(lengths.values())


def test_embedding_and_head_have_the_target_s_bits(trained, target_folder: Path) -> None:
    """Pitfall 25."""
    _, _, artifact = trained
    target, draft = (load_file(next(f.glob("*.safetensors"))) for f in (target_folder, artifact.path))
    assert torch.equal(
        draft["embed_tokens.weight"].view(torch.int32), target["model.embed_tokens.weight"].view(torch.int32)
    )
    assert torch.equal(draft["lm_head.weight"].view(torch.int32), target["lm_head.weight"].view(torch.int32))


def test_every_step_is_recorded(trained) -> None:
    config, store, artifact = trained
    lines = [line for line in read_lines(artifact.path / "metrics.jsonl") if line["kind"] == "train"]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [len(line["samples"]) for line in lines] == [2] * 6
    assert lines[0]["lr"] == 3e-3
    assert all(line["grad_norm"] > 0 and 0 <= line["waiting"] <= 1 for line in lines)
    taken = [sample for line in lines for sample in line["samples"]]
    assert (
        sorted(taken[:5]) == sorted(taken[5:10]) == [0, 1, 2, 3, 4]
    )  # two epochs of the five training samples


def test_the_last_screen_says_how_many_passes_there_were(cached, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = loop.run_train(cached.config(steps=4), cached.store, cached.cache)
    assert artifact is not None and artifact.manifest.counts["passes"] == 1.6
    assert "4 steps of 2 sequences (1.6 passes over 5 samples)" in " ".join(capsys.readouterr().out.split())


def test_training_lowers_the_loss(cached) -> None:
    config = cached.config(
        steps=40, lr=1e-2, global_batch=4, micro_batch=4, evaluate_every=40, checkpoint_every=40
    )
    artifact = loop.run_train(config, cached.store, cached.cache)
    assert artifact is not None
    lines = [line for line in read_lines(artifact.path / "metrics.jsonl") if line["kind"] == "train"]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.2
    assert lines[-1]["accepted_length"] > lines[0]["accepted_length"]


def test_finished_work_is_not_done_again(trained, capsys: pytest.CaptureFixture[str]) -> None:
    config, store, artifact = trained
    neutral = {"micro_batch": 2, "workers": 1, "verify": "size", "checkpoint_every": 50}
    for key, value in neutral.items():
        setattr(config.train, key, value)
    again = loop.run_train(config, store, store.resolve("cache", "tiny_chat"))
    assert again is not None
    assert again.path == artifact.path
    assert "Reusing the draft tiny_dspark:v0" in capsys.readouterr().out


def test_plan_prints_and_does_nothing(cached, capsys: pytest.CaptureFixture[str]) -> None:
    config = cached.config()
    config.plan = True
    before = sorted(cached.store.root.rglob("*"))
    assert loop.run_train(config, cached.store, cached.cache) is None
    text = capsys.readouterr().out
    for expected in ("5, 2", "6 x 2", "1 x 2 x 1", "estimate", "trainable", "one checkpoint"):
        assert expected in text
    assert sorted(cached.store.root.rglob("*")) == before


def test_flops_of_a_step(cached) -> None:
    setup = plan.prepare(cached.config(), cached.cache)
    blocks, context = 2 * 4, 2 * (12 + 30 + 9 + 20 + 17) / 5  # four anchors in each of two sequences
    products = setup.trainable - 272 * 4 + 272 * 32  # without the lookup W1, with the head
    assert plan.step_flops(setup) == blocks * 3 * 6 * products + context * 6 * 2 * 32 * 32


def test_mask_token_in_the_data_is_refused(cached) -> None:
    """Pitfall 26."""
    config = cached.config()
    config.target.mask_token_id = int(
        cached.store and plan.Samples(cached.cache.path, "train", None).reader.read(0).input_ids[0]
    )
    with pytest.raises(ConfigError, match=f"target.mask_token_id={config.target.mask_token_id}"):
        loop.run_train(config, cached.store, cached.cache)
    config.target.mask_token_id = 272
    with refused(ConfigError, "target.mask_token_id=272", 271):
        loop.run_train(config, cached.store, cached.cache)


@pytest.mark.parametrize(
    ("key", "value"),
    [("taps", [1, 2]), ("thinking", True), ("template_kwargs", {"a": 1}), ("dtype", "bfloat16")],
)
def test_a_cache_of_other_settings_is_refused(cached, key: str, value: object) -> None:
    """Pitfalls 4, 13."""
    config = cached.config()
    setattr(config.target, key, value)
    with refused(ConfigError, f"target.{key}", "tiny_chat:v0"):
        loop.run_train(config, cached.store, cached.cache)


def test_a_cache_of_another_target_is_refused(cached, tmp_path: Path) -> None:
    import tiny

    config = cached.config()
    config.target.path = str(tiny.save_target(tmp_path / "other", seed=1))
    with refused(ConfigError, "target", "tiny_chat:v0"):
        loop.run_train(config, cached.store, cached.cache)


def test_a_run_that_starts_with_cross_entropy_alone(cached) -> None:
    """While only cross-entropy counts nobody computes the acceptance; what was not computed is not reported."""
    config = cached.config(steps=4, evaluate_every=2)
    loss = config.drafter.loss
    loss.ce_start, loss.l1_start, loss.confidence_start, loss.ramp = 1.0, 0.0, 0.0, [0.25, 0.5]
    artifact = loop.run_train(config, cached.store, cached.cache)
    assert artifact is not None
    lines = [line for line in read_lines(artifact.path / "metrics.jsonl") if line["kind"] == "train"]
    assert [(line["ce_weight"], line["l1_weight"]) for line in lines] == [
        (1.0, 0.0),
        (1.0, 0.0),
        (0.1, 0.9),
        (0.1, 0.9),
    ]
    assert ["accepted_length" in line for line in lines] == [False, False, True, True]


def test_a_damaged_cache_is_refused_before_the_first_step(cached) -> None:
    """Must hold 6: one flipped byte, and the file is named."""
    chunk = sorted((cached.cache.path / "segments/00001/hidden/c").rglob("0"))[-1]
    content = bytearray(chunk.read_bytes())
    content[7] ^= 1
    chunk.write_bytes(content)
    config = cached.config()
    with pytest.raises(ManifestError, match=str(chunk.relative_to(cached.cache.path))):
        loop.run_train(config, cached.store, cached.cache)
    assert not (partial(config) / "metrics.jsonl").exists()


def poison(cached, sample: int) -> None:
    """Write the cache anew, with a NaN among the tapped states of ``sample``."""
    from data_specs.target_cache import CacheSpec
    from pipeline.states.index import write_index
    from pipeline.states.reader import CacheReader
    from pipeline.states.writer import write_segment

    reader = CacheReader(cached.cache.path)
    samples = [reader.read(i) for i in range(len(reader))]
    samples[sample].hidden[1] = float("nan")
    manifest = cached.cache.manifest
    work = cached.store.begin(
        "cache", "tiny_chat", manifest.schema_version, fingerprint("nan"), {}, manifest.config
    )
    spec: CacheSpec = reader.spec
    for number in range(0, len(samples), 2):
        write_segment(work.path, number // 2, samples[number : number + 2], spec)
    names = ("kind", "name", "schema_version", "fingerprint", "parents", "config")
    sealed = {name: getattr(work, name) for name in names} | {"counts": {}}
    cached.store.commit(work, write_index(work.path, spec, (len(samples) + 1) // 2, sealed))


@pytest.mark.parametrize("stage", [0, 1])
def test_a_loss_that_is_not_finite_stops_before_the_step_and_names_the_batch(cached, stage: int) -> None:
    """Pitfall 33."""
    poison(cached, sample=3)
    config = cached.config(steps=20, checkpoint_every=1)
    config.deepspeed.stage = stage
    cache: Artifact = cached.store.resolve("cache", "tiny_chat")
    with refused(loop.NonFiniteError, "step", 3, "0" * 12, "nan"):
        loop.run_train(config, cached.store, cache)
    lines = read_lines(partial(config) / "metrics.jsonl")
    assert all(3 not in line["samples"] for line in lines if line["kind"] == "train")


def test_without_heldout_samples_the_last_draft_is_the_best(
    made_cache: Path, target_folder: Path, tmp_path: Path
) -> None:
    import tiny_cache

    store = Store(tmp_path)
    cache = tiny_cache.make(store, target_folder, [12, 9])
    artifact = loop.run_train(tiny_cache.train_config(target_folder, tmp_path, steps=2), store, cache)
    assert artifact is not None
    assert artifact.manifest.counts["best_accepted_length"] is None
    assert (artifact.path / "model.safetensors").read_bytes() == (
        artifact.path / "last/model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("algorithm", ["dspark", "dflash", "eagle3", "mtp"])
def test_bf16_saves_trained_tensors_in_the_target_s_type(cached, algorithm: str) -> None:
    artifact = loop.run_train(cached.config(algorithm, dtype="bf16", steps=1), cached.store, cached.cache)
    assert artifact is not None and artifact.reference == f"tiny_{algorithm}:v0"
    with safe_open(artifact.path / "model.safetensors", framework="pt") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    tables = {"d2t": "I64", "t2d": "BOOL"}
    assert {name: kind for name, kind in types.items() if kind != "F32"} == (
        tables if algorithm == "eagle3" else {}
    )


def test_a_kill_between_summary_and_commit_leaves_only_the_commit(
    cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cached.config(steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "commit_once", lambda *_: exec('raise KeyboardInterrupt("killed")'))  # noqa: S102
        with pytest.raises(KeyboardInterrupt):
            loop.run_train(config, cached.store, cached.cache)
        assert not (partial(config) / "run").exists()
        patch.undo()
    monkeypatch.setattr(loop.Run, "train", lambda _: pytest.fail("it trained again"))
    artifact = loop.run_train(config, cached.store, cached.cache)
    assert artifact is not None
    assert artifact.manifest.counts == json.loads((artifact.path / "summary.json").read_text())
