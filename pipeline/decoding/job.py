"""The job of an evaluation: draft, benchmarks and sampler, checked before any model is loaded."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from data_specs.calibration import draft_contents
from data_specs.evaluation import SCHEMA_VERSION
from data_specs.manifest import MANIFEST, file_record, fingerprint, folder_records
from data_specs.results.summary import AnySummary
from pipeline.config import Config, ConfigError, EvaluateConfig, section
from pipeline.decoding import calibrate
from pipeline.decoding.sampling import Sampler
from pipeline.drafts.folders.checkpoint import read_config
from pipeline.preflight import Check, checked
from pipeline.prompts.benchmarks import FOLDER, Benchmark, Prompt
from pipeline.prompts.own import OwnPrompts, benchmarks_of, prompts_of
from pipeline.store.artifacts import Artifact
from pipeline.target.files import check_template, identity, template_identity
from pipeline.target.location import locate
from pipeline.target.tensors import TargetTensors

KIND = "evaluation"
# Settings that do not affect what is measured, only how the work is split and shown.
INCIDENTAL = ("chunk_prompts", "bootstrap")
PROFILED = ("profile_tokens", "profile_contexts", "profile_repeats")
SAMPLING = tuple(field.name for field in fields(Sampler))
# Settings left out of this fingerprint because they are fingerprinted by content, by the calibration, or not at all.
ELSEWHERE = ("files", "calibrate", "calibration_prompts", "profile", *PROFILED, *SAMPLING)


@dataclass(frozen=True)
class EvaluationJob:
    """A requested evaluation, before any prompt is read or model loaded."""

    draft: Path
    name: str
    parents: dict[str, str]
    benchmarks: list[Benchmark | OwnPrompts]
    sampler: Sampler
    calibration: calibrate.CalibrationPlan | None
    fingerprint: str


def make_job(config: Config, draft: Artifact | Path) -> EvaluationJob:
    """Identify the evaluation by its draft, target, benchmarks and settings.

    Raises ``ConfigError`` where the draft was trained with another template, or cannot be calibrated as asked.
    """
    settings = section(config.evaluate)
    sampler = sampler_of(config.evaluate)
    benchmarks = benchmarks_of(config)
    folder, name, made_of = identify(draft)
    check_template_of(config, draft)
    target = identity(locate(config.target))
    calibration = calibrate.make_plan(config, draft, folder, sampler, target)
    parts = [
        SCHEMA_VERSION, made_of, target, config.target.dtype, config.target.rendering,
        config.seed, sampler.effective(),
        {key: value for key, value in settings.items() if key not in (*INCIDENTAL, *ELSEWHERE)},
        *told(config, benchmarks),
        calibration and calibration.made_with,
        [settings[name] for name in PROFILED] if config.evaluate.profile else None,
    ]  # fmt: skip
    return EvaluationJob(
        folder, name, {"draft": made_of}, benchmarks, sampler, calibration, fingerprint(*parts)
    )


def sampler_of(settings: EvaluateConfig) -> Sampler:
    """The sampler that ``evaluate`` describes."""
    return Sampler(**{name: getattr(settings, name) for name in SAMPLING})


def check_fit(folder: Path, tensors: TargetTensors) -> None:
    """Raise ``ConfigError`` naming the field in which the draft in ``folder`` does not fit the target."""
    config = read_config(folder)
    rows, hidden = tensors.embedding.shape
    for field, expected in (("hidden_size", hidden), ("vocab_size", rows)):
        got = getattr(config, field)
        if got != expected:
            raise ConfigError(
                f"draft={folder}: {field}: expected {expected}, as in the target {tensors.folder}, got {got}"
            )
    layers = tensors.config.num_hidden_layers
    if max(config.target_layer_ids, default=0) >= layers:
        taps = list(config.target_layer_ids)
        raise ConfigError(
            f"draft={folder}: target_layer_ids: expected numbers below {layers}, as {tensors.folder} has, got {taps}"
        )


def identify(draft: Artifact | Path) -> tuple[Path, str, str]:
    """(folder, name, fingerprint) of a draft. If it is no artifact, the fingerprint is that of its contents.

    An export, in a folder .../NAME/v0, has the name NAME of its artifact.
    """
    if isinstance(draft, Artifact):
        return draft.path, draft.manifest.name, draft.manifest.fingerprint
    read_config(draft)
    folder = draft.resolve()
    own = folder.parent.name if (folder / MANIFEST).is_file() else folder.name
    name = re.sub(r"[^A-Za-z0-9._-]", "-", own).lstrip("._-") or "draft"
    return draft, name, draft_contents(draft)


def check_template_of(config: Config, draft: Artifact | Path) -> None:
    """Raise ``ConfigError`` if the draft was trained with another ``template_identity`` (pitfall 4)."""
    now = template_identity(locate(config.target), config.target)
    if isinstance(draft, Artifact):
        check_template(draft.manifest.config.get("target", {}), now, f"the draft {draft.reference}")


def told(config: Config, benchmarks: list[Benchmark | OwnPrompts]) -> list[list[Any]]:
    """What determines the prompts: a description of every benchmark, and the contents of its files."""
    return [
        [asdict(one) if isinstance(one, Benchmark) else one.name for one in benchmarks],
        [_content_of(config, one) for one in benchmarks],
    ]


def _content_of(config: Config, benchmark: Benchmark | OwnPrompts) -> Any:
    """Checksum of the local file or folder of the prompts; None for the Hub."""
    if isinstance(benchmark, OwnPrompts):
        return benchmark.contents
    given = config.evaluate.files.get(benchmark.name)
    path = Path(given).expanduser() if given else FOLDER / benchmark.path
    if path.is_file():
        return file_record(path).sha256
    return {name: record.sha256 for name, record in folder_records(path).items()} if path.is_dir() else None


def selected_prompts(config: Config, benchmarks: Sequence[Benchmark | OwnPrompts]) -> dict[str, list[Prompt]]:
    """Benchmark -> its prompts; see ``prompts_of`` for the errors."""
    return {one.name: prompts_of(config, one) for one in benchmarks}


def benchmark_checks(config: Config, keys: set[str]) -> list[Check]:
    """A check for each benchmark, which reads its prompts and adds their keys to ``keys``."""

    def read(name: str) -> str:
        one = replace(config, evaluate=replace(config.evaluate, benchmarks=[name]))
        (benchmark,) = benchmarks_of(one)
        file, limit = config.evaluate.files.get(name), config.evaluate.prompts
        asked = fingerprint(told(one, [benchmark]), file, limit)
        if asked not in _read:
            _read[asked] = [prompt.key for prompt in prompts_of(one, benchmark)]
        keys.update(_read[asked])
        return f"{len(_read[asked])} prompts"

    remedy = "evaluate.files.{}=FILE reads a local file instead".format
    return [
        checked(f"benchmark {name}", functools.partial(read, name), remedy(name))
        for name in config.evaluate.benchmarks
    ]


# Keys of the prompts by the benchmark's contents, kept because all jobs of a sweep or comparison ask for them.
_read: dict[str, list[str]] = {}


def chunks(prompts: dict[str, list[Prompt]], size: int) -> dict[str, list[Prompt]]:
    """Units of work ``<benchmark>-<number>``: at most ``size`` prompts of one benchmark each."""
    return {
        f"{name}-{start // size:05d}": listed[start : start + size]
        for name, listed in prompts.items()
        for start in range(0, len(listed), size)
    }


def counts_of(result: AnySummary) -> dict[str, Any]:
    """The counts for the manifest: totals over all benchmarks, and macro averages."""
    benchmarks = result.benchmarks.values()
    names = ("prompts", "answers", "rounds", "tokens", "too_long")
    counts: dict[str, Any] = {name: sum(b.counts.get(name, 0) for b in benchmarks) for name in names}
    if result.macro is not None:
        counts["accepted_length"] = result.macro.accepted_length.value
        counts["speedup"] = result.macro.speedup.value
    return counts
