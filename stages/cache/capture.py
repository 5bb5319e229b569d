"""Answers -> target cache: the frozen target's tapped layers and final states on every answered prompt.

The plan is pure: it depends on the answers and the config only, never on ranks, batches or what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from data_specs.answers import read_answers
from data_specs.manifest import fingerprint
from data_specs.target_cache import SCHEMA_VERSION, CacheError, CacheSpec, segment_bytes, segment_name
from pipeline import ranks
from pipeline.config import Config
from pipeline.console import progress, say, size
from pipeline.states.index import write_index
from pipeline.states.samples import Logits, Sample, check_finite
from pipeline.states.segments import SEALED, drop_damaged, segment_is_done
from pipeline.states.writer import write_segment
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.work import WorkShare, begin_once, commit_once
from pipeline.target import files as targets
from pipeline.target import group as target_group
from pipeline.target import location
from pipeline.target.group import TargetGroup
from pipeline.target.model import States, Target
from pipeline.target.tensors import check_same, load_tensors
from stages.cache.forecast import free_bytes, spec_of
from stages.cache.plan import (
    COLUMNS,
    CapturePlan,
    PlannedSample,
    check_positions,
    plan_batches,
    plan_capture,
    print_plan,
)

STORED = (
    "max_length",
    "segment_tokens",
    "chunk_tokens",
    "shard_tokens",
    "codec",
    "logits",
)  # decide what is stored
LOGIT_ROWS = 512  # tokens whose [V] logits exist at a time


def run_capture(config: Config, store: Store, answers: Artifact) -> Artifact | None:
    """Make (or find, or go on making) the target cache of ``answers``; with ``plan`` print what it would be.

    With ``target.tensor_parallel`` groups of ranks work as one process each; a process alone leaves it to vLLM, where
    that is the engine. Raises ``ConfigError`` where config and answers contradict, ``ManifestError`` naming a damaged
    file of the answers, ``CacheError`` naming a sample that cannot be cached or a cache that does not fit the disk.
    """
    alone = ranks.world_size() == 1 and config.capture.source == "vllm"
    if config.target.tensor_parallel == 1 or config.plan or alone:
        return _run(config, store, answers, None)
    with target_group.join(config.target, targets.device_of(config.target)) as group:
        made: Artifact | None = group.work(
            lambda: _run(config, store, answers, group), lambda taps: Target.load(config.target, taps, group)
        )
        return made


def _run(config: Config, store: Store, answers: Artifact, group: TargetGroup | None) -> Artifact | None:
    folder = location.locate(config.target)
    model = targets.read_config(folder, config.target)
    spec = spec_of(config, model)
    settings = _settings(config, spec, folder, getattr(model, "hc_mult", 1))
    parents = {"answers": answers.manifest.fingerprint}
    key = fingerprint(SCHEMA_VERSION, settings, parents)
    found = store.find("cache", key)
    if found is not None:
        return _already(found)
    answers.verify()
    rows = read_answers(answers.path, COLUMNS)
    template = targets.template_identity(folder, config.target)
    made = answers.manifest.config.get("target", {})
    targets.check_template(made, template, f"the answers {answers.reference}")
    plan = plan_capture(rows, config.capture, spec.vocab_size)
    check_positions(plan, getattr(model, "max_position_embeddings", None))
    if config.plan:
        print_plan(plan, spec, store.root, folder, config)
        return None
    engine = _engine(config)
    name = f"{config.target.name}_{config.data.name}"
    work = begin_once(store, "cache", name, SCHEMA_VERSION, key, parents, _told(settings, folder, template))
    if isinstance(work, Artifact):
        return _already(work)
    _capture_all(config, work, plan, spec, group)
    artifact = commit_once(store, work, lambda: _finish(work, plan, spec, engine))
    _say(f"target cache {artifact.reference}: {_summary(artifact.manifest.counts)} ({artifact.path})")
    return artifact


class StateSource(Protocol):
    """What computes states: the target in this process, or an engine."""

    def states(self, batches: Sequence[Sequence[PlannedSample]]) -> Iterator[list[States]]:
        """States of every sample of each batch: hidden [S, m*H], last_hidden [S, H]."""
        ...

    def logits(self, last_hidden: Tensor) -> Tensor:
        """Logits [..., V] of final states [..., H]."""
        ...


class InProcess:
    """The target in this process, or in the ranks of its group."""

    def __init__(self, target: Target) -> None:
        self.target, self.logits = target, target.logits

    def states(self, batches: Sequence[Sequence[PlannedSample]]) -> Iterator[list[States]]:
        """See ``Source``; ``CacheError`` naming the first sample of a batch whose states have another length."""
        for batch in batches:
            ids = torch.nn.utils.rnn.pad_sequence(
                [planned.input_ids for planned in batch], batch_first=True
            )  # [B, S]
            # Padded on the right under causal attention: no token sees the padding, so no mask is needed, and the
            # kernels without a mask are the fast ones.
            states = self.target.run(ids)
            if states.last_hidden.shape[:2] != ids.shape or states.hidden.shape[:2] != ids.shape:
                got = tuple(states.last_hidden.shape[:2])
                raise CacheError(
                    f"sample {batch[0].key}: expected states of {tuple(ids.shape)} tokens, got {got}"
                )
            ends = [len(planned.input_ids) for planned in batch]
            yield [
                States(states.hidden[row, :end], states.last_hidden[row, :end])
                for row, end in enumerate(ends)
            ]


def capture(
    source: StateSource, samples: Sequence[PlannedSample], spec: CacheSpec, batch_tokens: int
) -> Iterator[tuple[int, Sample]]:
    """(index, sample) of all ``samples``, batch by batch, shortest first; all states are finite."""
    batches = plan_batches([len(sample.input_ids) for sample in samples], batch_tokens)
    found = source.states([[samples[i] for i in batch] for batch in batches])
    for batch, states in zip(batches, found, strict=True):
        for i, own in zip(batch, states, strict=True):
            sample = _sample(source, samples[i], own, spec)
            check_finite(sample)
            yield i, sample


def _already(found: Artifact) -> Artifact:
    _say(f"Reusing the target cache {found.reference} ({found.path})")
    return found


def _settings(config: Config, spec: CacheSpec, folder: Path, streams: int) -> dict[str, Any]:
    """Everything that decides what is stored: with the parents, the cache's fingerprint (pitfall 13)."""
    stored = {name: getattr(config.capture, name) for name in STORED}
    if spec.logits == "topk":
        stored["top_k"] = spec.top_k
    if config.capture.source != "hf":  # other kernels, other roundings
        stored["engine"] = config.capture.source
    merged = {"streams": f"mean of {streams}"} if streams > 1 else {}  # what a slot of such a target is
    return {
        "target": {
            "name": config.target.name,
            "identity": targets.identity(folder),
            "tokenizer": targets.tokenizer_identity(folder),
            "revision": config.target.revision,
            "dtype": spec.dtype,
            "thinking": config.target.thinking,
            "slots": {
                f"slot{i}": "embedding" if tap < 0 else f"layer{tap}" for i, tap in enumerate(spec.taps)
            },
            "taps": spec.taps,
            "hidden_size": spec.hidden_size,
            "vocab_size": spec.vocab_size,
            **merged,
        },
        "data": config.data.name,
        "capture": stored,
    }


def _told(settings: dict[str, Any], folder: Path, template: dict[str, Any]) -> dict[str, Any]:
    """``settings`` with what identity and parents know in the fingerprint: template, and commit of the Hub."""
    commit = location.snapshot_commit(folder)
    more = template if commit is None else template | {"commit": commit}
    return settings | {"target": settings["target"] | more}


def _capture_all(
    config: Config, work: Work, plan: CapturePlan, spec: CacheSpec, group: TargetGroup | None
) -> None:
    """Capture the segments that nobody has committed, shared with the other processes (groups of them)."""
    numbers = {segment_name(number): number for number in range(len(plan.segments))}
    share = WorkShare(work.path, list(numbers), lambda unit: segment_is_done(work.path, numbers[unit]))
    tokens = {unit: plan.tokens(number) for unit, number in numbers.items()}
    left = share.remaining
    if not left:
        return
    if len(left) < len(numbers):
        there = len(numbers) - len(left)
        _say(f"target cache: {there} of {len(numbers)} segments are there; going on with the rest")
    _check_room(spec, [tokens[unit] for unit in left], work.path)
    total = sum(tokens[unit] for unit in left)
    with (
        _source(config, plan, spec, group, work.path) as source,
        progress("capturing states (tokens)", total, enabled=ranks.is_main()) as bar,
    ):
        for unit in share:
            bar.advance(
                total - sum(tokens[other] for other in share.remaining) - bar.done
            )  # what others have done
            planned = [plan.samples[i] for i in plan.segments[numbers[unit]]]
            samples = _in_order(capture(source, planned, spec, config.capture.batch_tokens), bar.advance)
            if not share.is_lost:
                # One that is there but not whole would stay in the way of the new one.
                drop_damaged(work.path, [numbers[unit]])
                write_segment(work.path, numbers[unit], samples, spec)


@contextmanager
def _source(
    config: Config, plan: CapturePlan, spec: CacheSpec, group: TargetGroup | None, folder: Path
) -> Iterator[StateSource]:
    """The target that ``capture.source`` names."""
    if config.capture.source == "vllm":
        from stages.cache.capture_vllm import vllm_target

        longest = max(len(sample.input_ids) for sample in plan.samples)
        with vllm_target(config, spec, folder, longest) as source:
            yield source
        return
    target = Target.load(config.target, spec.taps, group)
    target.check_head()
    if group is None:  # each rank of a group holds a part of the tensors
        check_same(target, load_tensors(config.target))
    yield InProcess(target)


def _engine(config: Config) -> dict[str, str]:
    """What the counts record of an engine other than this process; refuses one that is not there."""
    if config.capture.source == "hf":
        return {}
    from stages.cache.vllm_process import vllm_version

    return {"engine": f"vllm {vllm_version(config.capture.vllm)}"}


def _in_order(captured: Iterable[tuple[int, Sample]], advance: Callable[[int], None]) -> list[Sample]:
    """The samples by their numbers; they are captured in batches by length."""
    samples = {}
    for number, sample in captured:
        samples[number] = sample
        advance(len(sample.input_ids))
    return [samples[number] for number in sorted(samples)]


def _sample(source: StateSource, planned: PlannedSample, states: States, spec: CacheSpec) -> Sample:
    """The states of one sample, on the CPU, in memory of their own."""
    return Sample(
        input_ids=planned.input_ids,
        loss_mask=planned.loss_mask,
        hidden=_own(states.hidden),
        last_hidden=_own(states.last_hidden),
        split=planned.split,
        key=planned.key,
        logits=None if spec.logits == "none" else _logits(source, states.last_hidden, spec),
    )


def _own(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)


def _logits(source: StateSource, last_hidden: Tensor, spec: CacheSpec) -> Logits:
    """Logits of final states [S, H], a few rows at a time: the K largest and the log-sum-exp, or all."""
    values, ids, sums = [], [], []
    for rows in last_hidden.split(LOGIT_ROWS):
        logits = source.logits(rows)  # [rows, V]
        if spec.logits == "topk":
            sums.append(logits.float().logsumexp(-1))
            logits, top = logits.topk(spec.top_k, dim=-1)
            ids.append(top.int())
        values.append(logits.to(last_hidden.dtype))
    if spec.logits == "full":
        return Logits(_own(torch.cat(values)))
    return Logits(_own(torch.cat(values)), _own(torch.cat(ids)), _own(torch.cat(sums)))


def _check_room(spec: CacheSpec, tokens: Sequence[int], folder: Path) -> None:
    """Refuse a cache that does not fit the free disk, before anything is computed."""
    needed, free = sum(segment_bytes(spec, count) for count in tokens), free_bytes(folder)
    if needed > free:
        raise CacheError(
            f"{folder}: the cache needs {size(needed)} ({needed} bytes), free are {size(free)} ({free})"
        )


def _finish(work: Work, plan: CapturePlan, spec: CacheSpec, engine: dict[str, str]) -> dict[str, Any]:
    """Hash all segments once more against their records, write the index, and return the counts.

    Raises ``CacheError`` (and removes the segment, so that the next run makes it anew) when one is damaged.
    """
    errors = drop_damaged(work.path, range(len(plan.segments)))
    if errors:
        raise CacheError(f"{'; '.join(errors)}; removed: run the same command again")
    extra = {"truncated": plan.truncated, "left_out": plan.left_out, **engine}
    sealed = {name: getattr(work, name) for name in SEALED if name != "counts"}
    return write_index(work.path, spec, len(plan.segments), sealed | {"counts": extra})


def _say(text: str) -> None:
    if ranks.is_main():
        say(text)


def _summary(counts: Mapping[str, Any]) -> str:
    text = (
        f"{counts['samples']} samples, {counts['tokens']} tokens, {counts['supervised']} of them supervised"
    )
    left_out = ", ".join(f"{number} {reason}" for reason, number in counts["left_out"].items()) or "none"
    return f"{text}, {size(counts['bytes'])}; truncated {counts['truncated']}; left out: {left_out}"
