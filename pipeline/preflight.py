"""What a run finds out before it begins: one ``Check`` for everything that a later step will ask.

Each stage contributes a function ``checks(ahead)`` in its own folder; pipeline/__main__.py gathers those of all steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from data_specs.errors import UserError
from data_specs.manifest import MANIFEST, read_manifest
from pipeline import console
from pipeline.config import Config
from pipeline.config.rules import together
from pipeline.store.artifacts import Artifact, Store

State = Literal["ok", "problem", "not checked"]
COLOURS = {"ok": "green", "problem": "red", "not checked": "yellow"}


class PreflightError(UserError):
    """What stands in the way of a run, all of it at once, before anything is begun."""


class LaterError(UserError):
    """Something that cannot be known yet, because an earlier step has to make it; the message says what."""


@dataclass(frozen=True)
class Check:
    """What was asked (``name``), the answer, what was ``found`` (or why nobody asked), and what the user can do.

    ``least_bytes``: what the step writes at least.
    """

    name: str
    state: State
    found: str
    remedy: str = ""
    least_bytes: float = 0.0

    def __str__(self) -> str:
        return f"{self.name}: {self.found}" + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Ahead:
    """A run that has not begun: its config, and the (kind, name) of what is made before the step in question."""

    config: Config
    coming: frozenset[tuple[str, str]] = frozenset()

    @property
    def store(self) -> Store:
        """The artifacts of this run."""
        return Store(self.config.artifacts)

    def find(self, kind: str, reference: str) -> Artifact:
        """The artifact that ``reference`` names; ``LaterError`` where it is still to come, else as ``resolve``."""
        if (kind, reference.partition(":")[0]) in self.coming:
            raise LaterError(f"{kind} {reference} is made by an earlier step")
        return self.store.resolve(kind, reference)

    def cache(self) -> Artifact:
        """The target cache that is trained on; see ``find`` for the errors."""
        return self.find("cache", self.config.cache or cache_name(self.config))

    def draft(self) -> Artifact | Path:
        """The draft that is trained or named: an artifact, an export, or a folder of others; errors as of ``find``."""
        trained = "train" in self.config.stage.steps
        reference = (None if trained else self.config.draft) or draft_name(self.config)
        if ("draft", reference) in self.coming:
            return self.find("draft", reference)
        folder = Path(reference)
        has_manifest = (folder / MANIFEST).is_file()
        if has_manifest and (manifest := read_manifest(folder)).kind == "export":
            return Artifact(folder, manifest).verify().path
        if not has_manifest and (folder / "config.json").is_file():
            return folder
        return self.find("draft", reference)

    def after(self, step: str) -> Ahead:
        """The same run after ``step``, which may be that of another job."""
        made = {
            "cache": ("cache", cache_name(self.config)),
            "train": ("draft", draft_name(self.config)),
        }
        is_made = step in made and not (step == "cache" and names_cache(self.config))
        return replace(self, coming=self.coming | {made[step]}) if is_made else self


def cache_name(config: Config) -> str:
    """The name of the answers and of the target cache that ``config`` makes."""
    return f"{config.target.name}_{config.data.name}"


def draft_name(config: Config) -> str:
    """The name of the draft that ``config`` trains."""
    return f"{config.target.name}_{config.drafter.name}"


def names_cache(config: Config) -> bool:
    """Whether the steps after the cache are given one by its name, so that none is made."""
    return config.cache is not None and len(config.stage.steps) > 1


def checked(name: str, look: Callable[[], str], remedy: str = "") -> Check:
    """The check ``name``: ok with what ``look`` returns, or a problem or not checked with what it raises."""
    try:
        return Check(name, "ok", look())
    except LaterError as error:
        return Check(name, "not checked", str(error))
    except UserError as error:
        return Check(name, "problem", str(error), remedy)


def room(checks: Sequence[Check], root: Path) -> Check:
    """Whether the disk of ``root`` has room for all that ``checks`` say will be written at least."""
    needed = sum(check.least_bytes for check in checks)
    free = shutil.disk_usage(next(p for p in (root, *root.absolute().parents) if p.exists())).free
    found = f"at least {console.size(needed)} are needed, {console.size(free)} are free below {root}"
    remedy = "fewer prompts or taps and a smaller capture.max_length need less" if needed > free else ""
    return Check("room on the disk", "problem" if needed > free else "ok", found, remedy)


def problems(checks: Sequence[Check]) -> list[Check]:
    """Those of ``checks`` that stand in the way."""
    return [check for check in checks if check.state == "problem"]


def refuse(checks: Sequence[Check]) -> None:
    """Raise ``PreflightError`` with every problem among ``checks``, a line each where there are several."""
    if found := list(dict.fromkeys(map(str, problems(checks)))):
        raise PreflightError(together(found))


def show(checks: Sequence[Check]) -> None:
    """Print a line for each of ``checks``, with its state in front."""
    console.say("", "Checked before the start", "bold")
    for check in dict.fromkeys(checks):
        console.say(f" {check}", f"  {check.state:<11}", COLOURS[check.state])
