import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_capture import ROWS, answers_of, claims_of, config_of, planned, run, same_contents, start
from tiny_errors import refused
from tiny_templates import SWITCHED, folder_with, tokenizer

from data_specs.manifest import ManifestError, folder_records
from data_specs.target_cache import CacheError
from pipeline.config import ConfigError
from pipeline.prompts.template import digest
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.model import States, Target
from stages.cache import capture as module
from stages.cache.capture import InProcess, capture, run_capture
from stages.cache.forecast import spec_of


def test_the_cache_holds_what_the_target_computes_for_each_sample_alone(
    made: Artifact, target: Target
) -> None:
    """Pitfalls 15 to 17: batched = single, taps = the named layers, head on the last state = logits."""
    reader = CacheReader(made.path)
    reader.verify()
    assert reader.keys == [f"{number:02d}" * 32 + ":0" for number in range(6)]
    assert reader.splits == ["train", "train", "heldout", "train", "train", "heldout"]
    assert reader.lengths.tolist() == [10, 12, 10, 10, 22, 8]
    for i, row in enumerate(ROWS):
        sample = reader.read(i)
        assert sample.input_ids.tolist() == row.prompt_ids + row.answer_ids
        assert sample.loss_mask.tolist() == [False] * len(row.prompt_ids) + [True] * len(row.answer_ids)
        model = target.model(input_ids=sample.input_ids[None], output_hidden_states=True)
        for tap in (-1, 0):
            got = sample.hidden[:, reader.spec.columns(tap)]
            assert torch.allclose(got, model.hidden_states[tap + 1][0], atol=1e-5)
        assert torch.allclose(target.logits(sample.last_hidden), model.logits[0], atol=1e-4)


def test_states_are_stored_bit_for_bit(made: Artifact, target: Target) -> None:
    """The tapped layer = a forward hook on it, exactly, for the very batch that was run."""
    reader = CacheReader(made.path)
    sample = reader.read(4)  # alone in its segment, so alone in its batch
    seen = {}
    hook = target.decoder.layers[3].register_forward_hook(lambda _, __, out: seen.update(out=out))
    states = target.run(sample.input_ids[None])
    hook.remove()
    assert torch.equal(sample.hidden[:, reader.spec.columns(3)], seen["out"][0])
    assert torch.equal(sample.hidden, states.hidden[0])
    assert torch.equal(sample.last_hidden, states.last_hidden[0])


def test_a_bf16_target_is_stored_in_bf16(target_folder: Path, tmp_path: Path) -> None:
    config = config_of(target_folder, tmp_path)
    config.target.dtype = "bfloat16"
    artifact = run_capture(config, Store(tmp_path), answers_of(tmp_path, ROWS))
    assert artifact is not None
    sample = CacheReader(artifact.path).read(4)
    states = Target.load(config.target).run(sample.input_ids[None])
    assert sample.hidden.dtype == torch.bfloat16
    assert torch.equal(sample.hidden, states.hidden[0])
    assert torch.equal(sample.last_hidden, states.last_hidden[0])


def test_top_k_logits_and_their_log_sum_exp(target_folder: Path, tmp_path: Path, target: Target) -> None:
    artifact = run(target_folder, tmp_path, logits="topk", top_k=5)
    sample = CacheReader(artifact.path).read(4)
    expected = target.logits(sample.last_hidden)
    assert sample.logits is not None
    assert sample.logits.ids is not None
    assert sample.logits.lse is not None
    assert torch.equal(sample.logits.ids.long(), expected.topk(5).indices)
    assert torch.equal(sample.logits.values, expected.topk(5).values)
    assert torch.allclose(sample.logits.lse, expected.logsumexp(-1))


def test_full_logits(target_folder: Path, tmp_path: Path, target: Target) -> None:
    sample = CacheReader(run(target_folder, tmp_path, logits="full").path).read(4)
    assert sample.logits is not None
    assert torch.equal(sample.logits.values, target.logits(sample.last_hidden))


def test_the_manifest_says_what_the_slots_are_and_counts(made: Artifact) -> None:
    """Pitfalls 13 and 16."""
    target = made.manifest.config["target"]
    assert target["slots"] == {"slot0": "embedding", "slot1": "layer0", "slot2": "layer3"}
    assert (target["dtype"], target["thinking"], target["vocab_size"]) == ("float32", None, 272)
    assert len(target["identity"]) == len(target["tokenizer"]) == 64
    assert made.manifest.parents == {"answers": "a" * 64}
    counts = made.manifest.counts
    assert counts["bytes"] > 72 * (4 * 32 * 4 + 5)
    assert {name: counts[name] for name in counts if name != "bytes"} == {
        "samples": 6, "tokens": 72, "supervised": 43, "truncated": 0, "left_out": {},
        "splits": {"train": 4, "heldout": 2},
    }  # fmt: skip
    assert made.reference == "tiny_words:v0"


def test_the_commit_of_a_hub_snapshot_is_told_and_changes_no_fingerprint(
    made: Artifact, target_folder: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "snapshots" / ("0a" * 20)
    snapshot.parent.mkdir()
    snapshot.symlink_to(target_folder)
    again = run(snapshot, tmp_path / "store").manifest
    assert again.config["target"] == made.manifest.config["target"] | {"commit": "0a" * 20}
    assert again.fingerprint == made.manifest.fingerprint


def test_token_counts_tell_which_ids_occur(made: Artifact) -> None:
    """Pitfall 26: the mask token must not be one of them."""
    counts = CacheReader(made.path).token_counts
    expected = torch.bincount(
        torch.tensor([i for row in ROWS for i in row.prompt_ids + row.answer_ids]), minlength=272
    )
    assert counts.tolist() == expected.tolist()
    assert counts[250:].sum() == 0


@pytest.mark.parametrize(
    ("key", "configured", "answered"),
    [
        ("thinking", None, True),
        ("thinking", False, None),
        ("template_kwargs", {"style": "a"}, {"style": "b"}),
        ("chat_template", digest(tokenizer(SWITCHED)), "another"),
    ],
)
def test_answers_of_another_template_are_refused(
    target_folder: Path, tmp_path: Path, key: str, configured: Any, answered: Any
) -> None:
    """Pitfall 4."""
    folder = folder_with(SWITCHED, tmp_path / "target", target_folder)
    config = config_of(folder, tmp_path)
    if key != "chat_template":
        setattr(config.target, key, configured)
    with refused(ConfigError, f"target.{key}", str(configured), "tiny_words:v0", answered):
        run_capture(config, Store(tmp_path), answers_of(tmp_path, ROWS, **{key: answered}))


def test_states_that_are_not_finite_name_the_sample(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 15."""
    spec = spec_of(config_of(target.folder, target.folder), target.config)
    original = target.run

    def poisoned(ids: torch.Tensor) -> States:
        states = original(ids)
        hidden = states.hidden.clone()
        hidden[1, 2, 0] = float("nan")
        return States(hidden, states.last_hidden)

    monkeypatch.setattr(target, "run", poisoned)
    with refused(CacheError, "sample second", "hidden", 2, 6):
        list(capture(InProcess(target), [planned(5, "first"), planned(6, "second")], spec, 100))


def test_states_of_another_length_name_the_sample(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 15: fewer rows than tokens."""
    spec = spec_of(config_of(target.folder, target.folder), target.config)
    original = target.run
    monkeypatch.setattr(target, "run", lambda ids: original(ids[:, 1:]))
    with refused(CacheError, "sample first", (1, 5), (1, 4)):
        list(capture(InProcess(target), [planned(5, "first")], spec, 100))


def test_the_same_cache_is_not_made_again(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    first = run(target_folder, tmp_path)
    monkeypatch.setattr(Target, "load", lambda *_: pytest.fail("the target was loaded"))
    store = Store(tmp_path)
    again = run_capture(
        config_of(target_folder, tmp_path, batch_tokens=9), store, store.resolve("answers", "tiny_words")
    )
    assert again is not None
    assert again.path == first.path
    assert f"Reusing the target cache tiny_words:v0 ({first.path})" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    "change",
    ["max_length", "segment_tokens", "codec", "logits", "taps", "dtype", "thinking", "template", "answers"],
)
def test_whatever_changes_the_contents_changes_the_fingerprint(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Pitfall 13."""
    keys: list[str] = []

    def find(kind: str, key: str) -> SimpleNamespace:
        keys.append(key)
        return SimpleNamespace(reference=kind, path="there")

    store = SimpleNamespace(find=find)
    answers = SimpleNamespace(manifest=SimpleNamespace(fingerprint="a" * 64))
    config = config_of(target_folder, tmp_path)
    run_capture(config, store, answers)  # type: ignore[arg-type]
    run_capture(config, store, answers)  # type: ignore[arg-type]
    settings = {"max_length": 60, "segment_tokens": 30, "codec": "zstd", "logits": "full"}
    if change in settings:
        setattr(config.capture, change, settings[change])
    elif change == "answers":
        answers.manifest.fingerprint = "b" * 64
    elif change == "template":
        monkeypatch.setattr(module.targets, "tokenizer_identity", lambda _: "another")
    else:
        setattr(config.target, change, {"taps": [0, 1], "dtype": "bfloat16", "thinking": True}[change])
    run_capture(config, store, answers)  # type: ignore[arg-type]
    assert keys[0] == keys[1]
    assert keys[2] != keys[0]


def test_two_ranks_and_a_kill_end_in_the_unbroken_cache(
    made: Artifact, target_folder: Path, tmp_path: Path
) -> None:
    """Must hold 5; pitfalls 18, 20, 21: kill -9 of one of two ranks in its segment; the other takes over."""
    answers_of(tmp_path, ROWS)
    partial, ranks = tmp_path / "cache/tiny_words", []
    for rank, pause in ((0, 60.0), (1, 1.0)):  # the first is still in its segment when the second is at work
        ranks.append(start(target_folder, tmp_path, pause, rank, 2))
        deadline = time.monotonic() + 60
        while not claims_of(ranks[rank].pid, partial) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert ranks[rank].poll() is None
    os.kill(ranks[0].pid, signal.SIGKILL)
    assert ranks[1].wait(90) == 0
    ranks[0].wait(10)
    found = Store(tmp_path).list("cache")
    assert [artifact.reference for artifact in found] == ["tiny_words:v0"]
    assert same_contents(found[0].manifest, made.manifest)
    CacheReader(found[0].path).verify()


@pytest.mark.slow  # the quick suite has a kill under two ranks
def test_a_killed_capture_goes_on_with_what_is_missing(
    made: Artifact, target_folder: Path, tmp_path: Path
) -> None:
    """Must hold 5; pitfall 20: one finished segment was damaged while nobody ran."""
    answers_of(tmp_path, ROWS)
    process = start(target_folder, tmp_path, 0.5)
    segments: list[Path] = []
    deadline = time.monotonic() + 60
    while len(segments) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        segments = sorted((tmp_path / "cache/tiny_words").glob(".partial-*/segments/0*"))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    chunk = segments[0] / "hidden/c/0/0"
    kept = (segments[1] / "segment.json").stat().st_mtime_ns
    chunk.write_bytes(chunk.read_bytes()[:-3])
    store = Store(tmp_path)
    artifact = run_capture(config_of(target_folder, tmp_path), store, store.resolve("answers", "tiny_words"))
    assert artifact is not None
    assert same_contents(artifact.manifest, made.manifest)
    assert (artifact.path / "segments" / segments[1].name / "segment.json").stat().st_mtime_ns == kept
    assert folder_records(artifact.path) == artifact.manifest.files


@pytest.mark.slow
def test_killed_at_twenty_moments(made: Artifact, target_folder: Path, tmp_path: Path) -> None:
    """Must hold 5: caches made through twenty kills -9 at random moments equal the unbroken one, file by file."""
    dice, kills, finished = random.Random(5), 0, 0
    while kills < 20:
        root = tmp_path / str(finished)
        answers_of(root, ROWS)
        while not Store(root).list("cache"):
            process = start(target_folder, root, pause=0.15)
            while process.poll() is None and not claims_of(process.pid, root / "cache/tiny_words"):
                time.sleep(0.005)
            time.sleep(dice.uniform(0, 0.4))
            kills += process.poll() is None
            process.kill()
            process.wait(10)
        cache = Store(root).list("cache")[0]
        assert same_contents(cache.manifest, made.manifest)
        finished += 1
    assert finished >= 2


def test_a_segment_damaged_before_the_commit_is_not_committed(
    made: Artifact, target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 20: of the right size, so only the checksum tells."""
    original = module.write_segment

    def damaging(folder: Path, number: int, *rest: object) -> None:
        original(folder, number, *rest)  # type: ignore[arg-type]
        if number == 1:
            path = folder / "segments/00001/hidden/c/0/0"
            data = bytearray(path.read_bytes())
            data[5] ^= 4
            path.write_bytes(data)

    monkeypatch.setattr(module, "write_segment", damaging)
    with refused(CacheError, "segments/00001/hidden/c/0/0"):
        run(target_folder, tmp_path)
    assert Store(tmp_path).list("cache") == []
    monkeypatch.undo()
    store = Store(tmp_path)
    artifact = run_capture(config_of(target_folder, tmp_path), store, store.resolve("answers", "tiny_words"))
    assert artifact is not None
    assert same_contents(artifact.manifest, made.manifest)


def test_a_flipped_byte_in_the_answers_is_refused_by_name(target_folder: Path, tmp_path: Path) -> None:
    """Pitfall 20."""
    answers = answers_of(tmp_path, ROWS)
    content = bytearray((answers.path / "00001.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (answers.path / "00001.parquet").write_bytes(content)
    with pytest.raises(ManifestError, match="00001.parquet"):
        run_capture(config_of(target_folder, tmp_path), Store(tmp_path), answers)
    assert Store(tmp_path).list("cache") == []


def test_a_rank_that_loads_while_the_other_commits_makes_nothing(
    target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pitfall 18: the other rank renames the folder while this one loads its target."""
    answers, config, load = answers_of(tmp_path, ROWS), config_of(target_folder, tmp_path), Target.load
    other = []

    def late(*args: object) -> Target:
        monkeypatch.setattr(module.Target, "load", load)
        other.append(run_capture(config, Store(tmp_path), answers))
        monkeypatch.setattr(module, "write_segment", lambda *_: pytest.fail("made a segment anew"))
        return load(*args)

    monkeypatch.setattr(module.Target, "load", late)
    assert run_capture(config, Store(tmp_path), answers) == other[0]
    assert [path.name for path in other[0].path.parent.iterdir()] == ["v0"]
