"""For a target of every family: answers, a cache, one training step, and a draft that changes no answer."""

import json
from pathlib import Path

import pytest
import tiny_targets

from pipeline import config as schema
from pipeline.store.artifacts import Store
from stages.cache.answers import run_answers
from stages.cache.capture import run_capture
from stages.evaluate.run import run_evaluate
from stages.train.loop import run_train

PROMPTS = [{"prompt": "Count the apples on the table."}, {"prompt": "Why is the sky blue?"}]


def config_of(folder: Path, target: Path) -> schema.Config:
    """Two prompts, one step of two samples in fp32, and 20 new tokens, more than any window or compressor holds."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return schema.Config(
        target=schema.TargetConfig(name="tiny", path=str(target), dtype="float32", device="cpu", num_taps=2),
        data=schema.DataConfig(name="two", sources=[schema.SourceConfig(path=str(prompts))], heldout=0.0),
        answers=schema.AnswersConfig(source="hf", max_new_tokens=20, temperature=0.0, batch_size=1),
        capture=schema.CaptureConfig(max_length=256, chunk_tokens=16, shard_tokens=64),
        drafter=schema.DrafterConfig(name="dspark", algorithm="dspark", block_size=3, depth=1, markov_rank=4),
        train=schema.TrainConfig(
            steps=1,
            global_batch=2,
            micro_batch=1,
            anchors=4,
            warmup=0.0,
            dtype="fp32",
            workers=0,
            heldout_samples=0,
        ),
        deepspeed=schema.DeepSpeedConfig(stage=0),
        evaluate=schema.EvaluateConfig(
            benchmarks=["alpaca"],
            files={"alpaca": str(prompts)},
            max_new_tokens=20,
            bootstrap=10,
            calibrate=False,
        ),
        tracking=schema.TrackingConfig(mode="none"),
        artifacts=str(folder / "artifacts"),
    )


FAMILIES = [
    pytest.param(name, marks=pytest.mark.slow) if name in tiny_targets.SLOW else name
    for name in tiny_targets.FAMILIES
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_trained_on_the_target_leaves_its_greedy_answers_as_they_are(
    family: str, tmp_path: Path
) -> None:
    """Pitfall 41, through every stage and its files."""
    config = config_of(tmp_path, tiny_targets.save(family, tmp_path / "target"))
    store = Store(config.artifacts)
    answers = run_answers(config, store)
    assert answers is not None
    cache = run_capture(config, store, answers)
    assert cache is not None
    draft = run_train(config, store, cache)
    assert draft is not None
    evaluation = run_evaluate(config, store, draft)
    assert evaluation is not None
    (result,) = json.loads((evaluation.path / "summary.json").read_text())["benchmarks"].values()
    assert result["counts"]["prompts"] == 2
    assert result["counts"]["drafted"] > 0
    assert result["metrics"]["same_answers"]["value"] == 1
