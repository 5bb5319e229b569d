"""A target that several ranks hold together (target.tensor_parallel), on the CPU over gloo."""

from pathlib import Path

import pytest
import tiny_targets
import torch
from tiny_errors import refused

from data_specs.answers import SCHEMA_VERSION, AnswerRow, write_answers
from pipeline.config import CaptureConfig, Config, ConfigError, DataConfig, TargetConfig
from pipeline.states.reader import CacheReader
from pipeline.store.artifacts import Artifact, Store
from pipeline.target.model import Target
from stages.cache.capture import run_capture

LENGTHS = ((4, 16), (3, 9), (8, 2), (5, 25), (2, 20), (7, 1))  # prompt and answer tokens: five segments


def row_of(number: int, prompt: int, answer: int) -> AnswerRow:
    ids = torch.randint(250, (prompt + answer,), generator=torch.Generator().manual_seed(number)).tolist()
    return AnswerRow(
        key=f"{number:02d}" * 32, split="train", category=None, turn=0, prompt_ids=ids[:prompt],
        answer_ids=ids[prompt:], finish_reason="stop", messages="[]", thinking=None, sampling="{}",
    )  # fmt: skip


def config_of(family: str, root: Path, size: int) -> Config:
    """A capture in segments of 30 tokens, with answers for it and the target of ``family``."""
    target = root.parent / f"target-{family}"
    if not target.is_dir():
        tiny_targets.save(family, target)
    work = Store(root).begin("answers", "tiny_words", SCHEMA_VERSION, "a" * 64, {}, {})
    write_answers(work.path / "00000.parquet", [row_of(i, *lengths) for i, lengths in enumerate(LENGTHS)])
    Store(root).commit(work, {})
    return Config(
        target=TargetConfig(
            name="tiny",
            path=str(target),
            dtype="float32",
            device="cpu",
            taps=[-1, 0, 2],
            tensor_parallel=size,
        ),
        data=DataConfig(name="words"),
        capture=CaptureConfig(
            batch_tokens=60, segment_tokens=30, chunk_tokens=4, shard_tokens=16, logits="topk", top_k=3
        ),
        artifacts=str(root),
    )


def alone(family: str, folder: Path) -> Artifact:
    config = config_of(family, folder / f"alone-{family}", 1)
    store = Store(config.artifacts)
    made = run_capture(config, store, store.resolve("answers", "tiny_words"))
    assert made is not None
    return made


def check_equal(one: Artifact, other: Artifact) -> None:
    """The same samples, and states and logits to fp32 rounding."""
    assert one.manifest.fingerprint == other.manifest.fingerprint
    readers = [CacheReader(artifact.path) for artifact in (one, other)]
    assert readers[0].keys == readers[1].keys
    for number in range(len(LENGTHS)):
        first, second = (reader.read(number) for reader in readers)
        assert torch.equal(first.input_ids, second.input_ids)
        assert torch.allclose(first.hidden, second.hidden, atol=1e-5, rtol=1e-5)
        assert torch.allclose(first.last_hidden, second.last_hidden, atol=1e-5, rtol=1e-5)
        assert torch.allclose(first.logits.values, second.logits.values, atol=1e-5, rtol=1e-5)
        assert torch.equal(first.logits.ids, second.logits.ids)


def compare(families: list[str], ranks: int, folder: Path) -> None:
    configs = [config_of(family, folder / f"together-{family}", 2) for family in families]
    said = tiny_targets.capture_together(configs, ranks, folder)
    assert said == [["tiny_words:v0"] * len(families)] * ranks
    for family in families:
        (made,) = Store(folder / f"together-{family}").list("cache")
        assert [path.name for path in made.path.parent.iterdir()] == ["v0"]
        check_equal(alone(family, folder), made)


def test_two_ranks_make_together_the_cache_of_one(tmp_path: Path) -> None:
    compare(["qwen3", "llama"], 2, tmp_path)


def test_what_cannot_be_captured_together_ends_all_ranks(tmp_path: Path) -> None:
    """Damaged answers; one key head for two ranks; a model whose own forward pass transformers cannot split."""
    families = ("qwen3", "gemma4_unified", "gemma4")
    configs = [config_of(family, tmp_path / f"bad-{family}", 2) for family in families]
    (path,) = Store(configs[0].artifacts).resolve("answers", "tiny_words").path.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    leader, follower = tiny_targets.capture_together(configs, 2, tmp_path)
    for said in (leader, follower):  # every rank verifies what it reads
        assert said[0].startswith("ManifestError: ") and "00000.parquet" in said[0]
        assert (
            "target.tensor_parallel=2: expected a number that divides the key heads of every layer" in said[1]
        )
        assert "layer 3 of" in said[1]
        assert "target.tensor_parallel=2: transformers cannot run Gemma4ForConditionalGeneration" in said[2]


@pytest.mark.slow
def test_every_family_that_can_be_split(tmp_path: Path) -> None:
    compare([family for family in tiny_targets.FAMILIES if "gemma4" not in family], 2, tmp_path)


@pytest.mark.slow
def test_two_groups_of_two_share_the_segments(tmp_path: Path) -> None:
    compare(["qwen3"], 4, tmp_path)


def test_ranks_that_make_no_whole_groups_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("qwen3", tmp_path / "odd", 2)
    answers = Store(config.artifacts).resolve("answers", "tiny_words")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with refused(ConfigError, "target.tensor_parallel=2", 3):
        run_capture(config, Store(config.artifacts), answers)
    config.plan = True  # one process shows it
    assert run_capture(config, Store(config.artifacts), answers) is None


def test_other_stages_say_what_to_do_instead(tmp_path: Path) -> None:
    config = config_of("qwen3", tmp_path / "alone", 2)
    with refused(ConfigError, "target.tensor_parallel=2", "answers=openai"):
        Target.load(config.target)


def test_the_manifest_names_the_mean_of_several_streams(tmp_path: Path) -> None:
    made = alone("deepseek_v4", tmp_path)
    assert made.manifest.config["target"]["streams"] == "mean of 4"
    assert "streams" not in alone("llama", tmp_path).manifest.config["target"]
    sample = CacheReader(made.path).read(3)
    target = Target.load(config_of("deepseek_v4", tmp_path / "again", 1).target)
    model = target.model(input_ids=sample.input_ids[None], output_hidden_states=True)
    assert torch.allclose(sample.hidden[:, 64:], model.hidden_states[3][0].mean(1), atol=1e-5)
