"""A draft's calibration: found in an earlier evaluation or beside the draft, or fitted on recorded rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_specs.calibration import (
    CALIBRATION,
    Calibration,
    draft_contents,
    read_calibration,
    write_calibration,
)
from data_specs.evaluation import HELDOUT_ROUNDS, read_rounds
from data_specs.manifest import fingerprint
from data_specs.results.summary import CalibrationEffect
from pipeline import console
from pipeline.confidence.rounds import compare, observe
from pipeline.confidence.temperatures import LEAST_ROUNDS, fit
from pipeline.config import Config, ConfigError
from pipeline.decoding.dialogue import Speaker
from pipeline.decoding.sampling import Sampler
from pipeline.drafts.folders.checkpoint import read_config
from pipeline.prompts import heldout
from pipeline.prompts.benchmarks import Prompt
from pipeline.prompts.template import control_tokens, reads_tools
from pipeline.ranks import is_main
from pipeline.store.artifacts import Artifact
from pipeline.target.ragged import supports

TOGETHER = 16  # prompts that a calibration decodes together
# Answers the prompts of each name on all ranks and records the rounds: (folder's name, speaker, name -> prompts).
Answer = Callable[[str, Speaker, dict[str, list[Prompt]]], None]


@dataclass(frozen=True)
class CalibrationPlan:
    """What a calibration is made for, known before decoding; data_specs/calibration.py explains the fields."""

    folder: Path  # of the draft
    draft: str
    target: str
    sampler: dict[str, Any]
    dtype: str
    thinking: bool | None
    data: str
    made_with: str


def make_plan(
    config: Config, draft: Artifact | Path, folder: Path, sampler: Sampler, target: str
) -> CalibrationPlan | None:
    """The calibration to make, or None. With ``evaluate.calibrate=null``, a draft with a confidence head gets one.

    Raises ``ConfigError`` if the config asks for a calibration but there is no confidence head or no held-out prompt.
    """
    settings = config.evaluate
    head = bool(read_config(folder).enable_confidence_head)
    for name in ("calibrate", "sweep"):
        if getattr(settings, name) and not head:
            raise ConfigError(f"evaluate.{name}=true: {folder} has no confidence head")
    if settings.calibrate is False or not head:
        return None
    heldout.check(config.data)
    _check_share(config, draft)
    made_of: dict[str, Any] = {
        "target": target,
        "sampler": sampler.effective(),
        "dtype": config.target.dtype,
        "thinking": config.target.thinking,
        "data": config.data.name,
    }
    limits = [settings.max_new_tokens, settings.calibration_prompts, config.seed]
    # The draft is compared by its contents instead, because an export of it has another fingerprint.
    made_with = fingerprint(
        made_of | {"thinking": config.target.rendering}, limits, heldout.contents(config.data)
    )
    return CalibrationPlan(folder, draft_contents(folder), made_with=made_with, **made_of)


def obtain(
    config: Config, plan: CalibrationPlan, folder: Path, others: Sequence[Path], speaker: Speaker,
    unwanted: Collection[str], answer: Answer,
) -> Calibration | str:  # fmt: skip
    """The calibration of ``plan``, which is also written to ``folder``, the folder of the evaluation.

    It is reused from ``folder`` (if the evaluation was killed) or from one of the folders ``others``. Otherwise it is
    fitted on the rounds of held-out prompts whose keys are not in ``unwanted``; ``answer`` decodes these prompts. If
    there are too few, ``evaluate.calibrate=true`` raises ``TooFewError``, and null returns its message.
    """
    drafts = speaker.draft.max_drafts
    for place in (folder, *others):
        found = find(plan, place, drafts, unwanted)
        if found is not None:
            if is_main():
                said = f"{found.prompts} prompts of {found.data}, {found.rounds:,} rounds"
                console.say(f"Reusing the calibration {place / CALIBRATION} ({said})")
            write_calibration(folder, found)
            return found
    wanted, with_tools = config.evaluate.calibration_prompts, reads_tools(speaker.tokenizer)
    control = control_tokens(speaker.tokenizer)
    # Threshold 0 verifies every draft of a block. Nothing is timed, so prompts are batched if the target supports it.
    whole = replace(speaker, threshold=0.0, baseline=False)
    if supports(speaker.target):
        whole = replace(whole, batch=max(TOGETHER, speaker.batch))
    try:
        prompts = heldout.heldout_prompts(config.data, wanted, unwanted, with_tools, control)
        answer(HELDOUT_ROUNDS, whole, {heldout.NAME: prompts})
        made = fitted(plan, read_rounds(folder, HELDOUT_ROUNDS), drafts)
    except heldout.TooFewError as error:
        if config.evaluate.calibrate:
            raise
        if is_main():
            console.say(f"not calibrated: {error}", "warning:")
        return str(error)
    write_calibration(folder, made)
    return made


def find(plan: CalibrationPlan, folder: Path, drafts: int, reported: Collection[str]) -> Calibration | None:
    """The calibration in ``folder`` if it was made as ``plan`` says, on no prompt whose key is in ``reported``.

    ``drafts`` is the number of drafts of a block. Raises ``CalibrationFileError`` if the file is damaged or belongs to
    another draft.
    """
    if not (folder / CALIBRATION).is_file():
        return None
    found = read_calibration(folder, plan.draft, drafts)
    fits = found.made_with == plan.made_with and not set(found.keys) & set(reported)
    return found if fits else None


def check_rounds(rounds: int, prompts: int, data: str) -> None:
    """Raise ``TooFewError`` if there are fewer ``rounds`` than ``LEAST_ROUNDS``, and name ``prompts`` and ``data``."""
    if rounds < LEAST_ROUNDS:
        raise heldout.TooFewError(
            f"calibration: expected at least {LEAST_ROUNDS} rounds of held-out prompts, got {rounds} from {prompts} "
            f"prompts of data={data}; more come from a larger data.heldout (before training), "
            f"evaluate.calibration_prompts or evaluate.max_new_tokens, and {heldout.OFF}"
        )


def fitted(plan: CalibrationPlan, rounds: pa.Table, drafts: int) -> Calibration:
    """Fit temperatures on the ``rounds`` of held-out prompts. Raises ``TooFewError`` below ``LEAST_ROUNDS`` rounds."""
    seen = observe(rounds, drafts)
    check_rounds(len(seen.drafted), len(set(rounds["key"].to_pylist())), plan.data)
    temperatures = [float(t) for t in fit(seen.confidences, seen.accepted, seen.proposed)]
    return Calibration(
        draft=plan.draft, target=plan.target, sampler=plan.sampler, dtype=plan.dtype, thinking=plan.thinking,
        data=plan.data, made_with=plan.made_with, keys=sorted(set(rounds["key"].to_pylist())),
        rounds=len(seen.drafted), temperatures=temperatures, **compare(seen, temperatures),
    )  # fmt: skip


def effect(calibration: Calibration, rounds: pa.Table) -> CalibrationEffect:
    """The entry of ``calibration`` in summary.json: its temperatures and their effect on the reported ``rounds``."""
    temperatures = calibration.temperatures
    return CalibrationEffect(
        prompts=calibration.prompts,
        rounds=calibration.rounds,
        data=calibration.data,
        temperatures=temperatures,
        **compare(observe(rounds, len(temperatures)), temperatures),
    )


def calibrated(speaker: Speaker, calibration: Calibration) -> Speaker:
    """``speaker`` with the temperatures of ``calibration``."""
    return replace(speaker, temperatures=tuple(calibration.temperatures))


def _check_share(config: Config, draft: Artifact | Path) -> None:
    """Raise ``ConfigError`` if ``data.heldout`` now also covers prompts that the draft was trained on."""
    trained = draft.manifest.config.get("data", {}) if isinstance(draft, Artifact) else {}
    share = trained.get("heldout", 1)
    if trained.get("name") == config.data.name and config.data.heldout > share:
        raise ConfigError(
            f"data.heldout={config.data.heldout}: the draft was trained with data.heldout={share} on data="
            f"{config.data.name}, so it was trained on the prompts beyond that share; set data.heldout={share} or less"
        )
