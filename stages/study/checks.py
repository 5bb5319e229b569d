"""What stage=study can know before it begins: its draft and policies, the tables of steps, its benchmarks."""

from __future__ import annotations

import dataclasses

from pipeline.decoding.job import benchmark_checks
from pipeline.drafts.registry import supervised
from pipeline.preflight import Ahead, Check, LaterError, checked
from stages.study.points import arms
from stages.study.run import make_plan, read_tables


def checks(ahead: Ahead) -> list[Check]:
    """All that the study of ``ahead`` will need; nothing for the end of a chain that has no study."""
    if len(ahead.config.stage.steps) > 1 and not ahead.config.study.in_chain:
        return []
    return [checked("policies and tables", lambda: policies(ahead)), *benchmark_checks(ahead.config, set())]


def policies(ahead: Ahead) -> str:
    """The policies; ``UserError`` for those that the draft cannot have, and for tables that are too short."""
    config, study = ahead.config, ahead.config.study
    try:
        draft = ahead.draft()
    except LaterError:
        drafts = supervised(config.drafter).drafts
        read_tables(study, drafts)
        return ", ".join(arm.name for arm in arms(study.policies, drafts, study.threshold))
    if len(config.stage.steps) > 1:  # the evaluation before it makes the calibration
        config = dataclasses.replace(config, study=dataclasses.replace(study, calibrated=False))
    return ", ".join(arm.name for arm in make_plan(config, ahead.store, draft).arms)
