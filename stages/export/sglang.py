"""SGLang: DSpark with any head, 1+N DFlash, Eagle3 with a Llama layer and three taps, which it numbers by layers.

Its scheduler of verification reads two files, which lie in the export where their contents are known (formats by its
source, python/sglang/srt/speculative/dspark_components/dspark_sts.py and dspark_sps.py).
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
    """The folder that ``--speculative-draft-model-path`` names."""
    return eagle3_layout(source, (LAYERS,)) if source.facts.kind == "eagle3" else block_layout(source)


def schedule_files(
    facts: DraftFacts, calibration: Calibration | None, costs: SpsTable | None
) -> dict[str, dict[str, Any]]:
    """Name -> contents of what its scheduler reads; it schedules only drafts that have confidences."""
    if facts.kind != "dspark" or not facts.confidence:
        return {}
    known = {STS: calibration and sts(calibration), SPS: costs and sps(costs, facts.drafts)}
    return {name: contents for name, contents in known.items() if contents}


def sts(calibration: Calibration) -> dict[str, Any]:
    """Its DSparkStsCalibration: draft k survives with the product of sigmoid(logit / T) up to k, as ours does."""
    return {
        "temperatures": calibration.temperatures,
        "dataset": calibration.data,
        "num_samples": calibration.rounds,
        "ece_before": [row.ece for row in calibration.before],
        "ece_after": [row.ece for row in calibration.after],
    }


def sps(costs: SpsTable, drafts: int) -> dict[str, Any]:
    """Its SpsCostTable: steps a second by the tokens that are verified.

    As its own profiler measures them, a step of B tokens is of B / (G + 1) requests, and holds their draft pass, too.
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
    """The command that serves ``target`` with the draft in ``folder``; its draft tokens count the anchor too."""
    options = f"--speculative-algorithm {facts.kind.upper()} --speculative-draft-model-path {folder}"
    if facts.kind == "eagle3":
        options += f" --speculative-num-steps {facts.drafts} --speculative-eagle-topk 1"
    options += f" --speculative-num-draft-tokens {facts.drafts + 1}"
    options += "".join(
        f" {option} {folder}/{name}" for name, option in SCHEDULE.items() if name in known.files
    )
    return [f"python -m sglang.launch_server --model-path {target} {options}"]
