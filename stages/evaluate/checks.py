"""The checks of stage=evaluate before it begins: its draft, its benchmarks and the prompts for the calibration."""

from __future__ import annotations

from collections.abc import Collection

from data_specs.calibration import CALIBRATION
from pipeline.decoding.calibrate import check_rounds
from pipeline.decoding.job import KIND, EvaluationJob, benchmark_checks, check_fit, make_job
from pipeline.decoding.origin import trained_keys
from pipeline.preflight import Ahead, Check, checked, problems
from pipeline.prompts.heldout import TooFewError, heldout_prompts
from pipeline.prompts.template import control_tokens, reads_tools
from pipeline.store.lineage import calibrations
from pipeline.target.files import load_tokenizer
from pipeline.target.location import locate
from pipeline.target.tensors import load_tensors


def checks(ahead: Ahead) -> list[Check]:
    """Checks of what the evaluation of ``ahead`` needs; only the draft's if that evaluation exists already."""
    jobs: list[EvaluationJob] = []

    def draft() -> str:
        jobs.append(make_job(ahead.config, ahead.draft()))
        check_fit(jobs[0].draft, load_tensors(ahead.config.target, "meta"))
        return str(jobs[0].draft)

    found = [checked("draft to evaluate", draft)]
    there = ahead.store.find(KIND, jobs[0].fingerprint) if jobs else None
    if there is not None:
        return [*found, Check("evaluation", "ok", f"exists already: {there.reference}")]
    reported: set[str] = set()
    found += benchmark_checks(ahead.config, reported)
    if problems(found):
        return [*found, Check("calibration", "not checked", "this check needs the draft and the benchmarks")]
    return [*found, checked("calibration", lambda: calibration(ahead, jobs[0] if jobs else None, reported))]


def calibration(ahead: Ahead, job: EvaluationJob | None, reported: Collection[str]) -> str:
    """Describe the prompts to fit on: none is in ``reported`` (keys), and the draft was trained on none of them.

    Raises ``TooFewError`` if they cannot be enough, unless ``evaluate.calibrate`` is null. ``job`` is None if the draft
    is not trained yet; then the config says whether it has a confidence head.
    """
    config = ahead.config
    if job is None:
        is_wanted = config.drafter.confidence_head and config.evaluate.calibrate is not False
    else:
        is_wanted = job.calibration is not None
    if not is_wanted:
        return "not needed"
    trained: frozenset[str] | None = None
    if job is not None:
        if places := calibrations(ahead.store, job.draft, job.parents["draft"]):
            return f"{places[0] / CALIBRATION} exists"
        trained = trained_keys(ahead.store, ahead.draft())
    tokenizer = load_tokenizer(locate(config.target), config.target)
    wanted, unwanted = config.evaluate.calibration_prompts, {*reported, *(trained or ())}
    try:
        prompts = heldout_prompts(
            config.data, wanted, unwanted, reads_tools(tokenizer), control_tokens(tokenizer)
        )
        most = config.evaluate.max_new_tokens * sum(m["role"] == "user" for p in prompts for m in p.messages)
        check_rounds(most, len(prompts), config.data.name)  # every round emits at least one token
    except TooFewError as error:
        # Before the training, the user can still hold out more prompts.
        if config.evaluate.calibrate or job is None:
            raise
        return f"the draft will not be calibrated: {error}"
    return f"{len(prompts)} held-out prompts of {config.data.name}"
