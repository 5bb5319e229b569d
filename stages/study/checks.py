"""The checks of stage=study before it begins: its draft and policies, the SPS tables and its benchmarks."""

from __future__ import annotations

from dataclasses import replace

from pipeline.decoding.job import benchmark_checks
from pipeline.drafts.registry import supervised
from pipeline.preflight import Ahead, Check, LaterError, checked
from stages.study.points import arms
from stages.study.run import make_plan, read_tables


def checks(ahead: Ahead) -> list[Check]:
    """Checks of what the study of ``ahead`` needs; none for a chain without a study."""
    if len(ahead.config.stage.steps) > 1 and not ahead.config.study.in_chain:
        return []
    return [checked("policies and tables", lambda: policies(ahead)), *benchmark_checks(ahead.config, set())]


def policies(ahead: Ahead) -> str:
    """Names of the policies; raises ``UserError`` if the draft cannot serve one, or if an SPS table is too short."""
    config, study = ahead.config, ahead.config.study
    try:
        draft = ahead.draft()
    except LaterError:
        drafts = supervised(config.drafter).drafts
        read_tables(study, drafts)
        return ", ".join(arm.name for arm in arms(study.policies, drafts, study.threshold))
    if len(config.stage.steps) > 1:  # the evaluation in the same chain will make the calibration
        config = replace(config, study=replace(study, calibrated=False))
    return ", ".join(arm.name for arm in make_plan(config, ahead.store, draft).arms)
