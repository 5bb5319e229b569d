"""SGLang reads DSpark with any head, 1+N DFlash, and Eagle3 with a Llama layer and three taps, numbered by layers.

Its scheduler of verification reads two files, which an export has if their contents are known. Their formats are those
of dspark_sts.py and dspark_sps.py in python/sglang/srt/speculative/dspark_components.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from data_specs.calibration import Calibration
from data_specs.export import SPS, STS
from data_specs.sps import SpsTable
from stages.export.layouts import LAYERS, block_layout, eagle3_layout
from stages.export.serve import SCHEDULE
from stages.export.source import UNTOLD, DraftFacts, DraftSource, EngineLayout, ServeFacts


def plan(source: DraftSource) -> EngineLayout:
    """The folder for ``--speculative-draft-model-path``."""
    return eagle3_layout(source, (LAYERS,)) if source.facts.kind == "eagle3" else block_layout(source)


def schedule_files(
    facts: DraftFacts, calibration: Calibration | None, costs: SpsTable | None
) -> dict[str, dict[str, Any]]:
    """The files for its scheduler as name -> contents. It schedules only drafts that have confidences."""
    if facts.kind != "dspark" or not facts.confidence:
        return {}
    known = {STS: calibration and sts(calibration), SPS: costs and sps(costs, facts.drafts)}
    return {name: contents for name, contents in known.items() if contents}


def sts(calibration: Calibration) -> dict[str, Any]:
    """SGLang's DSparkStsCalibration. As here, the product of sigmoid(logit / T) up to k is the survival of draft k."""
    return {
        "temperatures": calibration.temperatures,
        "dataset": calibration.data,
        "num_samples": calibration.rounds,
        "ece_before": [row.ece for row in calibration.before],
        "ece_after": [row.ece for row in calibration.after],
    }


def sps(costs: SpsTable, drafts: int) -> dict[str, Any]:
    """SGLang's SpsCostTable: steps per second by the number of verified tokens.

    As in SGLang's own profiler, a step of B tokens serves B / (G + 1) requests and includes their draft pass.
    """
    requests, seconds = zip(*costs.draft, strict=True)
    tokens = [count for count, _ in costs.points]
    taken = [1 / rate + np.interp(count / (drafts + 1), requests, seconds) for count, rate in costs.points]
    return {
        "sample_batch_tokens": tokens,
        "sample_steps_per_sec": [float(1 / each) for each in taken],
        "max_batch_tokens": tokens[-1],
    }


def serve(facts: DraftFacts, target: str, folder: str, known: ServeFacts = UNTOLD) -> list[str]:
    """The command that serves ``target`` with the draft in ``folder``. SGLang counts the anchor as a draft token."""
    options = f"--speculative-algorithm {facts.kind.upper()} --speculative-draft-model-path {folder}"
    if facts.kind == "eagle3":
        options += f" --speculative-num-steps {facts.drafts} --speculative-eagle-topk 1"
    options += f" --speculative-num-draft-tokens {facts.drafts + 1}"
    files = {name: option for name, option in SCHEDULE.items() if name in known.files}
    options += "".join(f" {option} {folder}/{name}" for name, option in files.items())
    return [f"python -m sglang.launch_server --model-path {target} {options}"]
