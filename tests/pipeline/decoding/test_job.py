"""What identifies an evaluation, which drafts it refuses, and how its prompts are shared out."""

import copy
import dataclasses
import hashlib
import json
import shutil

import pytest
import tiny_evaluation
import tiny_summary
from tiny_errors import refused
from tiny_templates import SWITCHED, folder_with

from data_specs.calibration import draft_contents
from data_specs.evaluation import SCHEMA_VERSION
from pipeline.config import ConfigError, EvaluateConfig
from pipeline.decoding.job import (
    check_fit,
    chunks,
    counts_of,
    identify,
    make_job,
    sampler_of,
    selected_prompts,
    told,
)
from pipeline.decoding.sampling import Sampler
from pipeline.drafts.folders.fields import CheckpointError
from pipeline.prompts.benchmarks import load_benchmark
from pipeline.store.artifacts import Store
from pipeline.target.tensors import load_tensors


@pytest.fixture(scope="module")
def draft_folder(target_folder, tmp_path_factory):
    return tiny_evaluation.draft_in(tmp_path_factory.mktemp("drafts") / "tiny-draft", target_folder)


@pytest.fixture
def config(target_folder, tmp_path):
    return tiny_evaluation.config_of(target_folder, tmp_path)


def committed(store, draft_folder, kind="draft", **recorded):
    """``draft_folder`` as an artifact."""
    work = store.begin(kind, "tiny_dspark", SCHEMA_VERSION, "f" * 64, {}, recorded)
    for path in draft_folder.iterdir():
        shutil.copy(path, work.path)
    return store.commit(work, {})


def test_a_job_is_what_was_asked_for(config, draft_folder):
    config.evaluate.temperature, config.evaluate.top_k = 0.7, 5
    job = make_job(config, draft_folder)
    assert (job.draft, job.name) == (draft_folder, "tiny-draft")
    assert job.parents == {"draft": draft_contents(draft_folder)}
    assert [benchmark.name for benchmark in job.benchmarks] == ["gsm8k", "mt_bench"]
    assert (job.sampler.temperature, job.sampler.top_p, job.sampler.top_k) == (0.7, None, 5)
    assert job.calibration is None


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.7}, {"max_new_tokens": 11}, {"threshold": 0.1}, {"prompts": 2},
        {"baseline": False}, {"benchmarks": ["gsm8k"], "files": "math"}, {"profile": True},
    ],
)  # fmt: skip
def test_the_fingerprint_covers_what_is_measured(config, draft_folder, change):
    before = make_job(config, draft_folder).fingerprint
    if "files" in change:
        change = change | {"files": {"gsm8k": config.evaluate.files["gsm8k"]}}
    for name, value in change.items():
        setattr(config.evaluate, name, value)
    assert make_job(config, draft_folder).fingerprint != before


@pytest.mark.parametrize(
    "change", [{"top_p": 0.9}, {"top_k": 7}, {"min_p": 0.1}, {"draft_sampling": "greedy"}]
)
def test_sampler_settings_are_part_of_the_fingerprint_where_they_act(config, draft_folder, change):
    def made(**changes):
        settings = dataclasses.replace(config.evaluate, **changes)
        return make_job(dataclasses.replace(config, evaluate=settings), draft_folder).fingerprint

    assert made(**change) == made()
    assert made(temperature=0.7, **change) != made(temperature=0.7)


def test_every_sampler_setting_is_passed_on():
    settings = EvaluateConfig(temperature=0.7, top_p=0.9, top_k=7, min_p=0.1, draft_sampling="greedy")
    assert sampler_of(settings) == Sampler(0.7, 0.9, 7, 0.1, "greedy")


def test_the_fingerprint_covers_nothing_else(config, draft_folder, tmp_path):
    """How the work is split and shown, where the prompts lie, and a profile's settings where none is made."""
    before = make_job(config, draft_folder).fingerprint
    moved = shutil.copy(config.evaluate.files["gsm8k"], tmp_path / "moved.jsonl")
    for name, value in (
        ("chunk_prompts", 3), ("bootstrap", 7), ("profile_repeats", 9),
        ("files", config.evaluate.files | {"gsm8k": str(moved)}),
    ):  # fmt: skip
        setattr(config.evaluate, name, value)
    assert make_job(config, draft_folder).fingerprint == before


def test_the_fingerprint_covers_draft_prompts_and_seed(config, draft_folder, tmp_path):
    before = make_job(config, draft_folder).fingerprint
    moved = tmp_path / "elsewhere" / "tiny-draft"
    shutil.copytree(draft_folder, moved)
    assert make_job(config, moved).fingerprint == before
    values = json.loads((moved / "config.json").read_text()) | {"block_size": 3}
    (moved / "config.json").write_text(json.dumps(values))
    assert make_job(config, moved).fingerprint != before
    seeded = copy.deepcopy(config)
    seeded.seed = 1
    assert make_job(seeded, draft_folder).fingerprint != before
    with open(config.evaluate.files["gsm8k"], "a") as file:
        file.write(json.dumps({"question": "One more?"}) + "\n")
    assert make_job(config, draft_folder).fingerprint != before


def test_a_draft_is_named_by_its_artifact_else_by_its_folder(draft_folder, tmp_path):
    draft = committed(Store(tmp_path), draft_folder)
    assert identify(draft) == (draft.path, "tiny_dspark", "f" * 64)
    contents = draft_contents(draft_folder)
    odd = shutil.copytree(draft_folder, tmp_path / "-my draft!")
    assert identify(odd) == (odd, "my-draft-", contents)  # a name that an artifact may have
    export = committed(Store(tmp_path), draft_folder, "export").path  # .../tiny_dspark/v0
    assert identify(export) == (export, "tiny_dspark", contents)
    with pytest.raises(CheckpointError, match="config.json"):
        identify(tmp_path)


@pytest.mark.parametrize(
    ("trained", "now"),
    [
        ({"thinking": True}, {"thinking": False}),
        ({"template_kwargs": {}}, {"template_kwargs": {"style": "terse"}}),
        ({"chat_template": "f" * 64}, {}),
    ],
)
def test_another_template_than_the_drafts_is_refused(
    config, draft_folder, target_folder, tmp_path, trained, now
):
    """Pitfall 4."""
    draft = committed(Store(config.artifacts), draft_folder, target=trained)
    config.target.path = str(folder_with(SWITCHED, tmp_path / "switched", target_folder))
    ((key, had),) = trained.items()
    if now:
        setattr(config.target, key, had)
        assert make_job(config, draft).name == "tiny_dspark"
        setattr(config.target, key, now[key])
    with refused(ConfigError, f"target.{key}", had, "tiny_dspark:v0"):
        make_job(config, draft)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("hidden_size", 48, 32), ("vocab_size", 300, 272), ("target_layer_ids", [0, 4], 4)],
)
def test_a_draft_that_does_not_fit_is_refused_by_name(config, draft_folder, tmp_path, field, value, expected):
    tensors = load_tensors(config.target)
    check_fit(draft_folder, tensors)
    folder = tmp_path / "misfit"
    shutil.copytree(draft_folder, folder)
    values = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(values))
    with refused(ConfigError, field, expected, value):
        check_fit(folder, tensors)


def test_the_contents_of_local_prompts_are_told(config, tmp_path):
    benchmark = load_benchmark("gsm8k")
    config.evaluate.files["gsm8k"] = str(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "a.jsonl").write_text("one")
    one = hashlib.sha256(b"one").hexdigest()
    assert told(config, [benchmark])[1] == [{"a.jsonl": one}]
    config.evaluate.files["gsm8k"] = str(tmp_path / "a.jsonl")
    assert told(config, [benchmark])[1] == [one]
    del config.evaluate.files["gsm8k"]
    assert told(config, [benchmark])[1] == [None]  # of the Hub


def test_prompts_are_selected_by_benchmark(config):
    benchmarks = [load_benchmark(name) for name in ("mt_bench", "gsm8k")]
    found = selected_prompts(config, benchmarks)
    assert list(found) == ["mt_bench", "gsm8k"]
    assert sorted(prompt.messages[0]["content"] for prompt in found["mt_bench"]) == [
        "Hello there.", "What is rain?",
    ]  # fmt: skip
    config.evaluate.prompts = 2
    assert [len(listed) for listed in selected_prompts(config, benchmarks).values()] == [2, 2]


def test_chunks():
    parts = chunks({"a": list(range(5)), "b": [7]}, 2)
    assert parts == {"a-00000": [0, 1], "a-00001": [2, 3], "a-00002": [4], "b-00000": [7]}


def test_the_manifest_counts_all_benchmarks_together():
    common = {"prompts": 2, "answers": 3, "rounds": 10, "tokens": 20}
    values = tiny_summary.summary(levels={"a": 1.5, "b": 1.5})
    for name, counts in (("a", common | {"too_long": 1}), ("b", common)):
        values["benchmarks"][name]["counts"] = counts
    values["macro"] |= {"speedup": tiny_summary.told(None)}
    sums = {"prompts": 4, "answers": 6, "rounds": 20, "tokens": 40, "too_long": 1}
    assert counts_of(tiny_summary.record(values)) == sums | {"accepted_length": 2.5, "speedup": None}
    assert counts_of(tiny_summary.record(values | {"macro": None})) == sums
