"""``calibration.json``: the temperatures that make a draft's confidences mean what they say.

It lies beside config.json in the draft's folder, outside the manifest, because it does not change the draft. Each
evaluation that used it has a copy. Draft k of a block (k = 0 .. G-1) has the calibrated confidence
sigmoid(logit(c_k) / T_k). pipeline/confidence/temperatures.py fits the temperatures on rounds of held-out prompts.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from data_specs.draft import CONFIG
from data_specs.errors import UserError
from data_specs.manifest import fingerprint, folder_records, read_json, write_json
from data_specs.results.records import parse
from data_specs.results.summary import PositionQuality, Sampler

CALIBRATION = "calibration.json"
SCHEMA_VERSION = 1
AGAIN = (
    "python -m pipeline stage=evaluate evaluate.calibrate=true, with the target, sampler and benchmarks of this run, "
    "fits it again (for an export: export the draft again after that)"
)


class CalibrationFileError(UserError):
    """A ``calibration.json`` is missing, damaged or of another draft; the message names file and field."""


@dataclass(frozen=True)
class Calibration:
    """Contents of ``calibration.json`` without its schema version.

    ``before`` and ``after`` give, by position, the quality of the cumulative product on the rounds of the fit, without
    and with the temperatures.
    """

    draft: str  # ``draft_contents`` of the draft's folder
    target: str  # pipeline.target.files.identity of the target
    sampler: Sampler  # Sampler.effective()
    dtype: str
    thinking: bool | None
    data: str  # name of the data whose held-out prompts were answered
    made_with: str  # fingerprint of all that the rounds depend on except the draft
    keys: list[str]  # pipeline.prompts.rows.prompt_key of those prompts, which no evaluation may report on
    rounds: int
    temperatures: list[float]  # [G]
    before: list[PositionQuality]
    after: list[PositionQuality]

    @property
    def prompts(self) -> int:
        """How many prompts the temperatures were fitted on."""
        return len(self.keys)


def draft_contents(folder: Path) -> str:
    """Fingerprint of a draft's folder: the names and SHA-256 of config.json and the weights."""
    records = folder_records(folder, (CONFIG, "*.safetensors"))
    return fingerprint({name: record.sha256 for name, record in records.items()})


def write_calibration(folder: Path, calibration: Calibration) -> None:
    """Write ``calibration.json`` into ``folder``, whole or not at all."""
    values = {"schema_version": SCHEMA_VERSION, "prompts": calibration.prompts} | asdict(calibration)
    write_json(folder / CALIBRATION, values)


def read_calibration(folder: Path, draft: str, drafts: int) -> Calibration:
    """The calibration in ``folder`` for the draft with the ``draft_contents`` ``draft`` and ``drafts`` drafts a block.

    Raises ``CalibrationFileError`` naming the file and the field if the file is missing, of an unknown schema version
    or of another draft, or if its temperatures are not ``drafts`` positive finite numbers.
    """
    path = folder / CALIBRATION
    if not path.is_file():
        raise CalibrationFileError(
            f"{path}: no such file; python -m pipeline stage=evaluate evaluate.calibrate=true makes it"
        )
    values = read_json(path)
    version = values.get("schema_version") if isinstance(values, dict) else None
    if version != SCHEMA_VERSION:
        raise CalibrationFileError(f"{path}: schema_version: expected {SCHEMA_VERSION}, got {version!r}")
    names = {field.name for field in fields(Calibration)}
    if set(values) != names | {"schema_version", "prompts"}:
        raise CalibrationFileError(f"{path}: expected the fields {sorted(names)}, got {sorted(values)}")
    _check(path, values, draft, drafts)
    return parse({name: values[name] for name in names}, Calibration, path)


def check_use(
    folder: Path, found: Calibration, target: str, sampler: Sampler, thinking: bool | None, keys: Collection[str]
) -> None:  # fmt: skip
    """Raise ``CalibrationFileError`` naming the field that makes ``found``, read from ``folder``, unfit for this run.

    ``target``, ``sampler`` and ``thinking`` (see ``Calibration``) determine how answers are distributed; ``dtype`` only
    affects rounding and is not compared. No prompt of this run (``keys``) may have been used for the fit.
    """
    path = folder / CALIBRATION
    for name, expected in (("target", target), ("sampler", sampler), ("thinking", thinking)):
        got = getattr(found, name)
        if got != expected:
            raise CalibrationFileError(
                f"{path}: {name}: expected {_short(expected)}, got {_short(got)}; {AGAIN}"
            )
    seen = sorted(set(found.keys) & set(keys))
    if seen:
        raise CalibrationFileError(
            f"{path}: keys: expected none of the prompts of this run, got {len(seen)} of them (the first: "
            f"{_short(seen[0])}); {AGAIN}"
        )


def _short(value: Any) -> str:
    """The first characters of a fingerprint, or another value whole."""
    return f"{value[:12]}..." if isinstance(value, str) else str(value)


def _check(path: Path, values: dict[str, Any], draft: str, drafts: int) -> None:
    if values["draft"] != draft:
        raise CalibrationFileError(
            f"{path}: draft: made for another draft (expected {draft[:12]}..., got {str(values['draft'])[:12]}...); "
            "remove the file, or restore the one of this draft"
        )
    temperatures = values["temperatures"]
    if not isinstance(temperatures, list) or len(temperatures) != drafts:
        raise CalibrationFileError(
            f"{path}: temperatures: expected {drafts} numbers, one a draft of a block, got {temperatures!r}"
        )
    for k, t in enumerate(temperatures):
        if isinstance(t, bool) or not isinstance(t, int | float) or not math.isfinite(t) or t <= 0:
            raise CalibrationFileError(
                f"{path}: temperatures[{k}]: expected a positive finite number, got {t!r}"
            )
