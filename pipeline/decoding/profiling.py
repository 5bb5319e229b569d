"""The profile of an evaluation: measured once and kept as files.

profile.json   what pipeline/decoding/step_costs.py measures
sps.json       the same as a table of data_specs/sps.py, for simulations (study.sps=<this file>)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_specs.manifest import read_json, write_json
from pipeline import console
from pipeline.config import EvaluateConfig
from pipeline.decoding import step_costs
from pipeline.decoding.dialogue import Speaker

PROFILE, TABLE = "profile.json", "sps.json"


def obtain(folder: Path, speaker: Speaker, settings: EvaluateConfig, target: str) -> dict[str, Any]:
    """The profile in ``folder``, which a killed run may have left; measured now if there is none.

    ``target`` is the short name of the target.
    """
    if (folder / PROFILE).is_file():
        made: dict[str, Any] = read_json(folder / PROFILE)
    else:
        contexts, repeats = sorted(settings.profile_contexts), settings.profile_repeats
        with console.progress("profile of the target", step_costs.rounds_of(contexts, repeats)) as bar:
            made = step_costs.measure(
                speaker.target,
                speaker.draft,
                settings.profile_tokens,
                contexts,
                repeats,
                lambda: bar.advance(1),
            )
        write_json(folder / PROFILE, made)
    write_json(folder / TABLE, step_costs.table(made, f"{target}_here", target))
    return made
