"""Makes the target cache: the frozen target's tapped layers and final states for every answered prompt.

The plan depends only on the answers and the config, never on ranks, batches or existing segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_specs.answers import read_answers
from data_specs.files import free_bytes
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
from stages.cache.forecast import spec_of
from stages.cache.plan import (
    COLUMNS,
    CapturePlan,
    PlannedSample,
    check_positions,
    plan_batches,
    plan_capture,
    print_plan,
)

# The settings of capture that decide what is stored.
STORED = ("max_length", "segment_tokens", "chunk_tokens", "shard_tokens", "codec", "logits")
LOGIT_ROWS = 512  # the logits [V] of so many tokens are in memory at a time


def run_capture(config: Config, store: Store, answers: Artifact) -> Artifact | None:
    """Make, resume or reuse the target cache of ``answers``; with ``plan`` only print what it would contain.

    With ``target.tensor_parallel`` each group of ranks works as one process, but if a single process uses vLLM, vLLM
    splits the target itself. Raises ``ConfigError`` if config and answers contradict each other, ``ManifestError``
    naming a damaged file of the answers, and ``CacheError`` naming a sample that cannot be cached or a cache that does
    not fit the disk.
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
    if (found := store.find("cache", key)) is not None:
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
    """Computes states: the target in this process, or an engine."""

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
        """See ``StateSource``; ``CacheError`` names the first sample of a batch whose states have a wrong length."""
        for batch in batches:
            # [B, S], padded on the right: under causal attention no token sees the padding, so we need no mask, and the
            # kernels without a mask are faster.
            ids = pad_sequence([planned.input_ids for planned in batch], batch_first=True)
            states = self.target.run(ids)
            if states.last_hidden.shape[:2] != ids.shape or states.hidden.shape[:2] != ids.shape:
                got = tuple(states.last_hidden.shape[:2])
                raise CacheError(
                    f"sample {batch[0].key}: expected states of {tuple(ids.shape)} tokens, got {got}"
                )
            yield [
                States(hidden[: len(planned.input_ids)], last[: len(planned.input_ids)])
                for planned, hidden, last in zip(batch, states.hidden, states.last_hidden, strict=True)
            ]


def capture(
    source: StateSource, samples: Sequence[PlannedSample], spec: CacheSpec, batch_tokens: int
) -> Iterator[tuple[int, Sample]]:
    """Yield (index, sample) of all ``samples`` in batches, shortest first; ``CacheError`` if a state is not finite."""
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
    """Everything that decides what is stored; with the parents it makes the cache's fingerprint (pitfall 13)."""
    stored = {name: getattr(config.capture, name) for name in STORED}
    if spec.logits == "topk":
        stored["top_k"] = spec.top_k
    if config.capture.source != "hf":  # another engine's kernels round differently
        stored["engine"] = config.capture.source
    merged = {"streams": f"mean of {streams}"} if streams > 1 else {}  # such a target's slot is a mean
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
    """``settings`` plus the chat template and the Hub's commit, which the fingerprint covers by other parts."""
    commit = location.snapshot_commit(folder)
    more = template if commit is None else template | {"commit": commit}
    return settings | {"target": settings["target"] | more}


def _capture_all(
    config: Config, work: Work, plan: CapturePlan, spec: CacheSpec, group: TargetGroup | None
) -> None:
    """Capture the missing segments, sharing them with the other processes or groups of processes."""
    numbers = {segment_name(number): number for number in range(len(plan.segments))}
    share = WorkShare(work.path, list(numbers), lambda unit: segment_is_done(work.path, numbers[unit]))
    tokens = {unit: plan.tokens(number) for unit, number in numbers.items()}
    left = share.remaining
    if not left:
        return
    if len(left) < len(numbers):
        done = len(numbers) - len(left)
        _say(f"target cache: {done} of {len(numbers)} segments exist; capturing the others")
    _check_room(spec, [tokens[unit] for unit in left], work.path)
    total = sum(tokens[unit] for unit in left)
    with (
        _source(config, plan, spec, group, work.path) as source,
        progress("capturing states (tokens)", total, enabled=ranks.is_main()) as bar,
    ):
        for unit in share:
            others = total - sum(tokens[other] for other in share.remaining) - bar.done
            bar.advance(others)  # other processes have captured these tokens
            planned = [plan.samples[i] for i in plan.segments[numbers[unit]]]
            samples = _in_order(capture(source, planned, spec, config.capture.batch_tokens), bar.advance)
            if not share.is_lost:
                # A damaged segment would block the new one.
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
    if group is None:  # a rank of a group holds only a part of each tensor
        check_same(target, load_tensors(config.target))
    yield InProcess(target)


def _engine(config: Config) -> dict[str, str]:
    """The engine's version for the counts, empty for this process; ``ConfigError`` if vLLM is missing."""
    if config.capture.source == "hf":
        return {}
    from stages.cache.vllm_process import vllm_version

    return {"engine": f"vllm {vllm_version(config.capture.vllm)}"}


def _in_order(captured: Iterable[tuple[int, Sample]], advance: Callable[[int], None]) -> list[Sample]:
    """Sort the captured samples by their numbers, because batches capture them by length."""
    samples = {}
    for number, sample in captured:
        samples[number] = sample
        advance(len(sample.input_ids))
    return [samples[number] for number in sorted(samples)]


def _sample(source: StateSource, planned: PlannedSample, states: States, spec: CacheSpec) -> Sample:
    """One sample with its own copy of the states on the CPU."""
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
    """Logits of final states [S, H], computed in parts: all, or the K largest and the log-sum-exp."""
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
    """Raise ``CacheError`` if the cache does not fit the free disk, before anything is computed."""
    needed, free = sum(segment_bytes(spec, count) for count in tokens), free_bytes(folder)
    if needed > free:
        raise CacheError(
            f"{folder}: the cache needs {size(needed)} ({needed} bytes), but only {size(free)} ({free}) are free"
        )


def _finish(work: Work, plan: CapturePlan, spec: CacheSpec, engine: dict[str, str]) -> dict[str, Any]:
    """Check the hashes of all segments again, write the index, and return the counts.

    Raises ``CacheError`` if a segment is damaged, after removing it so that the next run captures it again.
    """
    if errors := drop_damaged(work.path, range(len(plan.segments))):
        raise CacheError(f"{'; '.join(errors)}; these segments were removed: run the same command again")
    extra = {"truncated": plan.truncated, "left_out": plan.left_out, **engine}
    sealed = {name: getattr(work, name) for name in SEALED if name != "counts"}
    return write_index(work.path, spec, len(plan.segments), sealed | {"counts": extra})


def _say(text: str) -> None:
    if ranks.is_main():
        say(text)


def _summary(counts: Mapping[str, Any]) -> str:
    text = f"{counts['samples']} samples, {counts['tokens']} tokens ({counts['supervised']} supervised)"
    left_out = ", ".join(f"{number} {reason}" for reason, number in counts["left_out"].items()) or "none"
    return f"{text}, {size(counts['bytes'])}; truncated {counts['truncated']}; left out: {left_out}"
