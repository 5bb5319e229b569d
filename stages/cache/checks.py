"""Checks before stage=cache starts: the target, the prompts and how they render, the servers and the free disk."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

from data_specs.files import free_bytes
from data_specs.manifest import canonical
from pipeline import ranks
from pipeline.config import Config, ConfigError, DataConfig, SourceConfig, section
from pipeline.console import size
from pipeline.preflight import Ahead, Check, cache_name, checked, names_cache, problems
from pipeline.prompts.sources import local_files
from pipeline.prompts.template import control_tokens
from pipeline.prompts.training import TrainingPrompts, load_prompts
from pipeline.target.files import device_of, end_ids, read_config, resolve_taps
from stages.cache.answers_job import AnswersJob, answering_target, prepare, to_answer
from stages.cache.answers_plan import forecast_cache, rendered

ROWS = 5000  # read at most this many of each source, unless none of them can be used
SAMPLE = 100  # render at most this many prompts


def checks(ahead: Ahead) -> list[Check]:
    """Check everything that the target cache of ``ahead`` needs; this renders a sample of its prompts."""
    config = ahead.config
    if names_cache(config):
        return [checked("cache", lambda: ahead.cache().reference)]
    control: list[str] = []
    read: list[TrainingPrompts] = []

    def target() -> str:
        folder, tokenizer, rows = answering_target(config)
        control.extend(control_tokens(tokenizer))
        return f"{folder}: {loaded(config, folder)}, {rows} embedding rows"

    def prompts() -> str:
        read.append(first_prompts(config, control))
        return described(read[0])

    found = [
        checked("target", target),
        checked("prompts", prompts),
        checked("where states are computed", lambda: capturing(config)),
    ]
    if problems(found[:2]):
        return [*found, Check("answers", "not checked", "this needs the target and the prompts")]
    jobs: list[AnswersJob] = []

    def answers() -> str:
        jobs.append(prepare(config, read[0]))
        return answerable(jobs[0])

    found.append(checked("answers", answers))
    return [*found, room(ahead, jobs[0])] if found[-1].state == "ok" else found


def loaded(config: Config, folder: Path) -> str:
    """The model, taps and device of the target in ``folder``; ``ConfigError`` if taps or device do not exist."""
    model, device = read_config(folder, config.target), device_of(config.target)
    return f"{model.model_type}, taps {resolve_taps(config.target, model.num_hidden_layers)}, on {device}"


def first_prompts(config: Config, control: Sequence[str]) -> TrainingPrompts:
    """The prompts in the first ``ROWS`` rows of each source, or in all rows if none of these is for training.

    Raises ``ConfigError`` if there is no prompt to answer, or no prompt to train on.
    """
    files = [local_files(source) for source in config.data.sources]
    states = tuple((str(path), path.stat().st_mtime_ns) for listed in files for path in listed)
    prompts = _read(canonical(section(config.data)), config.answers.source == "given", tuple(control), states)
    to_answer(prompts)
    if "train" in config.stage.steps and not prompts.of("train"):
        held = len(prompts.of("heldout"))
        raise ConfigError(f"data: there is no prompt to train on; {held} of {prompts.accepted} are held out")
    return prompts


@functools.lru_cache(maxsize=1)  # All jobs of a sweep ask for the same prompts.
def _read(
    data: str, given: bool, control: tuple[str, ...], states: tuple[tuple[str, int], ...]
) -> TrainingPrompts:
    """Load the prompts of ``data`` (JSON). ``states`` (path, mtime) makes changed files miss the cache."""
    values = json.loads(data)
    whole = DataConfig(**values | {"sources": [SourceConfig(**source) for source in values["sources"]]})
    sources = [dataclasses.replace(s, limit=min(ROWS, s.limit or ROWS)) for s in whole.sources]
    prompts = load_prompts(dataclasses.replace(whole, sources=sources), given, control)
    return prompts if prompts.of("train") else load_prompts(whole, given, control)


def described(prompts: TrainingPrompts) -> str:
    """The numbers of ``prompts`` by split and reason of rejection, for the user."""
    kept = ", ".join(f"{len(prompts.of(split))} {split}" for split in ("train", "heldout", "benchmark"))
    return f"{prompts.read} rows read: {kept}{_reasons(prompts.rejected)}"


def _reasons(rejected: dict[str, int]) -> str:
    return "".join(f"; {number} rejected, {reason}" for reason, number in sorted(rejected.items()))


def answerable(job: AnswersJob) -> str:
    """How many of a sample of prompts can be answered, and which engine answers.

    Raises ``ConfigError`` if none can be answered or a sample exceeds the target's positions, and ``ServerError`` if a
    server does not answer.
    """
    lengths, reasons = rendered(job, SAMPLE)
    if not lengths:
        raise ConfigError(
            f"data: all {reasons.total()} prompts that were rendered are rejected{_reasons(reasons)}"
        )
    positions = getattr(read_config(job.folder, job.config.target), "max_position_embeddings", None)
    longest = max(most for _, most in lengths)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"capture.max_length={job.config.capture.max_length}: a sample may have {longest} tokens, but the target "
            f"has {positions} positions: set capture.max_length={positions} to cut longer samples"
        )
    source = job.config.answers.source
    by = {"given": "given", "hf": "by the target in this process"}.get(source) or _server(job)
    return f"{len(lengths)} of {len(lengths) + reasons.total()} rendered{_reasons(reasons)}; {by}"


def _server(job: AnswersJob) -> str:
    from stages.cache.source_openai import OpenAISource

    assert job.settings is not None
    once, ends = dataclasses.replace(job.config.answers.openai, retries=1), end_ids(job.folder, job.tokenizer)
    engine = OpenAISource(once, job.settings, job.tokenizer, job.config.target.thinking, ends)
    return f"{engine.model} at {', '.join(engine.urls)}"


def capturing(config: Config) -> str:
    """What computes the states; ``ConfigError`` if the ranks do not fit the target's groups or vLLM is missing."""
    if config.capture.source == "vllm":
        from stages.cache.vllm_process import vllm_version

        return f"vLLM {vllm_version(config.capture.vllm)}"
    parts = config.target.tensor_parallel
    count = max(ranks.world_size(), ranks.wanted(config.ranks))
    if count % parts:
        raise ConfigError(
            f"target.tensor_parallel={parts}: expected a number that divides the {count} ranks; set ranks to one of "
            "its multiples"
        )
    return f"the target in {count} {'process' if count == 1 else 'processes'}"


def room(ahead: Ahead, job: AnswersJob) -> Check:
    """The bounds of the cache's bytes for the prompts that were read."""
    name, cast = "bytes of the target cache", forecast_cache(job, SAMPLE)
    there = [a.reference for a in ahead.store.list("answers") if a.manifest.name == cache_name(job.config)]
    if there:  # bytes on disk must not be counted again
        return Check(name, "not checked", f"answers exist already: {there[-1]}")
    if cast.least_bytes > free_bytes(
        ahead.store.root
    ):  # only an estimate from a sample, so count all prompts
        cast = forecast_cache(job, len(job.asked))
    found = f"{size(cast.least_bytes)} at least, {size(cast.most_bytes)} at most"
    return Check(name, "ok", found, least_bytes=cast.least_bytes)
