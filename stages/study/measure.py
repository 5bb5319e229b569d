"""Serves the points of a study with a loaded target and draft, and times the machine before and after each point."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import torch

from data_specs.calibration import CalibrationFileError, check_use, draft_contents, read_calibration
from pipeline import console
from pipeline.confidence.temperatures import scaled
from pipeline.config import Config, ConfigError
from pipeline.decoding.batched import Engine
from pipeline.decoding.job import EvaluationJob, check_fit, selected_prompts
from pipeline.decoding.sampling import Sampler
from pipeline.decoding.scheduler import Policy
from pipeline.decoding.step_costs import Reference
from pipeline.decoding.steps import Step, Times
from pipeline.drafts.base import Draft
from pipeline.drafts.folders.checkpoint import load
from pipeline.prompts.chat import render_prompt
from pipeline.prompts.template import TemplateRefusal
from pipeline.store.artifacts import Store
from pipeline.store.lineage import calibrations
from pipeline.target.files import identity, load_tokenizer
from pipeline.target.location import locate
from pipeline.target.model import Target
from pipeline.target.tensors import check_same, load_tensors
from stages.study.costs import StepRates, from_steps
from stages.study.points import StudyPoint, requests
from stages.study.pool import record
from stages.study.simulation import RecordedAnswer, answer_of_rounds
from stages.study.timing import time_steps

Prompts = list[tuple[int, ...]]  # token ids of each prompt


@dataclass(frozen=True)
class MeasuredPoint:
    """The steps and times of one served point, and the steps that timed the machine before and after it."""

    before: list[Step]
    steps: list[Step]
    times: list[Times]
    after: list[Step]


class InProcessServer:
    """Makes engines of one target and draft. Without ``temperatures``, confidences are not calibrated."""

    def __init__(
        self,
        target: Target,
        draft: Draft,
        prompts: Prompts,
        sampler: Sampler,
        temperatures: Sequence[float] | None,
        config: Config,
    ) -> None:
        self.target, self.draft, self.prompts = target, draft, prompts
        self.sampler, self.temperatures = sampler, temperatures
        self.study, self.seed = config.study, config.seed
        self._reference: Reference | None = None
        self.last: dict[int, list[Step]] = {}  # concurrency -> steps, of the latest timing only

    @classmethod
    def load(
        cls, config: Config, job: EvaluationJob, temperatures: Sequence[float] | None
    ) -> InProcessServer:
        """Load target, draft and prompts; raises ``ConfigError`` for a draft that does not fit or a prompt too long."""
        tensors = load_tensors(config.target)
        check_fit(job.draft, tensors)
        draft = load(job.draft, tensors)
        target = Target.load(config.target, list(draft.config.target_layer_ids) or None)
        check_same(target, tensors)
        prompts = load_ids(config, job, load_tokenizer(target.folder, config.target))
        longest, most = max(map(len, prompts)), target.config.max_position_embeddings
        if longest + config.study.max_new_tokens > most:
            raise ConfigError(
                f"study.max_new_tokens={config.study.max_new_tokens}: together with a prompt of {longest} tokens, it "
                f"exceeds the target's {most} positions"
            )
        draft = draft.to(device=target.device, dtype=target.dtype)
        return cls(target, draft, prompts, job.sampler, temperatures, config)

    def engine(self, policy: Policy | None, slots: int, drafts: int) -> Engine:
        """An engine with ``slots``, which proposes ``drafts`` tokens (0: without the draft)."""
        capacity = max(map(len, self.prompts)) + max(self.study.max_new_tokens, self.study.timing_tokens)
        generator = torch.Generator(self.target.device).manual_seed(self.seed)
        engine = Engine(
            self.target,
            self.draft if drafts else None,
            self.sampler,
            policy,
            slots,
            capacity,
            drafts=drafts,
            temperatures=self.temperatures,
            generator=generator,
        )
        if self.study.simulate:  # only the prediction uses the machine's speed
            engine.reference = self.reference(slots)
        return engine

    def reference(self, slots: int) -> Reference:
        """The pass that measures the machine's speed at ``slots`` requests."""
        if self._reference is None or len(self._reference.counts) != slots:
            self._reference = Reference(self.target, [1 + self.draft.max_drafts // 2] * slots)
        return self._reference

    def warm_up(self) -> None:
        """Run everything once before anything is timed."""
        deque(self.engine(None, 2, self.draft.max_drafts).serve(requests(self.prompts, 2, 4)), maxlen=0)

    def time_steps(self, slots: int) -> list[Step]:
        """Time steps now (timing.py)."""
        steps = time_steps(self.engine, self.prompts, slots, self.draft.max_drafts, self.study.timing_tokens)
        self.last = {slots: steps}
        return steps

    def measure(self, point: StudyPoint, count: int, predicted: bool) -> MeasuredPoint:
        """Serve ``count`` requests at ``point``. The timing after a point also serves as the one before the next.

        Without ``predicted``, the machine is timed once per concurrency, which is enough for the scheduler.
        """
        before = self.last.get(point.concurrency) or self.time_steps(point.concurrency)
        rates = StepRates(from_steps(before), self.draft.max_drafts)
        policy = point.arm.policy(rates, self.draft.config.enable_confidence_head)
        engine = self.engine(policy, point.concurrency, point.arm.drafts)
        served = list(engine.serve(requests(self.prompts, count, self.study.max_new_tokens)))
        times = sorted((one.times for one in served), key=lambda times: times.number)
        after = self.time_steps(point.concurrency) if predicted else []
        return MeasuredPoint(before, list(engine.steps), times, after)

    def record(self, slots: int) -> list[RecordedAnswer]:
        """Answers to all prompts, decoded with whole chains, with drafts and calibrated confidences along them.

        For greedy answers, the draft is then asked again at every position (pool.py). For sampled answers, the record
        covers only the positions where rounds began.
        """
        limit, drafts = self.study.max_new_tokens, self.draft.max_drafts
        asked = requests(self.prompts, len(self.prompts), limit)
        served = sorted(self.engine(None, slots, drafts).serve(asked), key=lambda one: one.request.number)
        if self.sampler.greedy:
            answers = record(self.target, self.draft, self.prompts, [one.answer for one in served], limit)
        else:
            pairs = zip(self.prompts, served, strict=True)
            answers = [answer_of_rounds(len(prompt), limit, one.rounds, drafts) for prompt, one in pairs]
        if self.temperatures is None:
            return answers
        temperatures = np.asarray(self.temperatures)
        return [
            replace(one, confidences=scaled(one.confidences, temperatures)) if len(one.held) else one
            for one in answers
        ]


def load_ids(config: Config, job: EvaluationJob, tokenizer: object) -> Prompts:
    """Token ids of the first turn of every prompt, alternating between the benchmarks.

    Raises ``ConfigError`` naming the prompt that the chat template refuses.
    """
    listed = zip_longest(*selected_prompts(config, job.benchmarks).values())
    found = []
    for prompt in (one for row in listed for one in row if one is not None):
        first = next(n for n, message in enumerate(prompt.messages) if message["role"] == "user")
        messages = prompt.messages[: first + 1]
        try:
            found.append(tuple(render_prompt(tokenizer, messages, config.target.thinking, prompt.tools)))
        except TemplateRefusal as error:
            raise ConfigError(f"benchmark {prompt.benchmark}, prompt {prompt.index}: {error}") from error
    return found


def temperatures_of(config: Config, store: Store, job: EvaluationJob, drafts: int) -> list[float] | None:
    """The temperatures of the draft's latest calibration for such answers.

    None with ``study.calibrated=false``, and in a chain that could not calibrate. Raises ``CalibrationFileError`` if
    the draft has no calibration, or only some for other settings than the study's, or fitted on prompts of the study.
    """
    if not config.study.calibrated:
        return None
    target, sampler = identity(locate(config.target)), job.sampler.effective()
    keys = {p.key for listed in selected_prompts(config, job.benchmarks).values() for p in listed}
    unfit: list[CalibrationFileError] = []
    places = calibrations(store, job.draft, job.parents["draft"])
    # The evaluation had too few rounds to calibrate, and a chain of several hours should not end with an error.
    if config.study.in_chain and not places:
        console.say("study: the confidences are not calibrated")
        return None
    for place in places or [job.draft]:
        try:
            found = read_calibration(place, draft_contents(job.draft), drafts)
            check_use(place, found, target, sampler, config.target.thinking, keys)
            return found.temperatures
        except CalibrationFileError as error:
            unfit.append(error)
    raise unfit[0]
