"""The profile of an evaluation, measured once and stored in two files.

profile.json   what pipeline/decoding/step_costs.py measures
sps.json       the same as a table of data_specs/sps.py, for simulations (study.sps=<this file>)
"""

from __future__ import annotations

from pathlib import Path

from data_specs.manifest import write_json
from data_specs.results.records import read_record, write_record
from data_specs.results.summary import Profile
from pipeline import console
from pipeline.config import EvaluateConfig
from pipeline.decoding import step_costs
from pipeline.decoding.dialogue import Speaker

PROFILE, TABLE = "profile.json", "sps.json"


def obtain(folder: Path, speaker: Speaker, settings: EvaluateConfig, target: str) -> Profile:
    """The profile in ``folder``, left by a killed run or measured now. ``target`` is the target's short name."""
    if (folder / PROFILE).is_file():
        made = read_record(folder / PROFILE, Profile)
    else:
        contexts, repeats = sorted(settings.profile_contexts), settings.profile_repeats
        with console.progress("profile of the target", step_costs.rounds_of(contexts, repeats)) as bar:
            made = step_costs.measure(
                speaker.target, speaker.draft, settings.profile_tokens, contexts, repeats, lambda: bar.advance(1)
            )  # fmt: skip
        write_record(folder / PROFILE, made)
    write_json(folder / TABLE, step_costs.table(made, f"{target}_here", target))
    return made
