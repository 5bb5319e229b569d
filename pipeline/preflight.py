"""Checks before a run begins: one ``Check`` for each thing that a later step needs.

The folder of each stage has a function ``checks(ahead)``; stages/preflight.py calls those of all steps of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from data_specs.errors import UserError
from data_specs.files import free_bytes
from data_specs.manifest import MANIFEST, read_manifest
from pipeline import console
from pipeline.config import Config
from pipeline.config.rules import together
from pipeline.store.artifacts import Artifact, Store

State = Literal["ok", "problem", "not checked"]
COLOURS = {"ok": "green", "problem": "red", "not checked": "yellow"}


class PreflightError(UserError):
    """A run cannot succeed. The message lists every problem, and is raised before any work begins."""


class LaterError(UserError):
    """A check must wait for something that an earlier step will make; the message names it."""


@dataclass(frozen=True)
class Check:
    """The result of one check: its name and state, what was found (or why nothing was checked), and a remedy.

    ``least_bytes`` is the least number of bytes that the step writes.
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
    """A run that has not begun: its config, and the (kind, name) of each artifact that its earlier steps will make."""

    config: Config
    coming: frozenset[tuple[str, str]] = frozenset()

    @property
    def store(self) -> Store:
        """The store that holds the artifacts of this run."""
        return Store(self.config.artifacts)

    def find(self, kind: str, reference: str) -> Artifact:
        """The artifact that ``reference`` names. Raises ``LaterError`` if an earlier step makes it."""
        if (kind, reference.partition(":")[0]) in self.coming:
            raise LaterError(f"{kind} {reference} is made by an earlier step")
        return self.store.resolve(kind, reference)

    def cache(self) -> Artifact:
        """The target cache for the training; see ``find`` for the errors."""
        return self.find("cache", self.config.cache or cache_name(self.config))

    def draft(self) -> Artifact | Path:
        """The draft that this run trains or names: an artifact, or the folder of an export or of a foreign draft.

        See ``find`` for the errors.
        """
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
        """The same run after ``step``, which may be a step of an earlier job of a sweep."""
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
    """Whether ``config`` names an existing cache for the later steps, so that the run makes none."""
    return config.cache is not None and len(config.stage.steps) > 1


def checked(name: str, look: Callable[[], str], remedy: str = "") -> Check:
    """Run ``look``, which returns what it found. A ``UserError`` makes a problem, a ``LaterError`` "not checked"."""
    try:
        return Check(name, "ok", look())
    except LaterError as error:
        return Check(name, "not checked", str(error))
    except UserError as error:
        return Check(name, "problem", str(error), remedy)


def room(checks: Sequence[Check], root: Path) -> Check:
    """Check that the disk of ``root`` has room for the sum of ``least_bytes`` of ``checks``."""
    needed = sum(check.least_bytes for check in checks)
    free = free_bytes(root)
    found = f"at least {console.size(needed)} are needed, {console.size(free)} are free below {root}"
    remedy = "fewer prompts or taps and a smaller capture.max_length need less" if needed > free else ""
    return Check("room on the disk", "problem" if needed > free else "ok", found, remedy)


def problems(checks: Sequence[Check]) -> list[Check]:
    """The ``checks`` that found a problem."""
    return [check for check in checks if check.state == "problem"]


def refuse(checks: Sequence[Check]) -> None:
    """Raise ``PreflightError`` if ``checks`` found problems; each of several problems has its own line."""
    if found := list(dict.fromkeys(map(str, problems(checks)))):
        raise PreflightError(together(found))


def show(checks: Sequence[Check]) -> None:
    """Print one line for each of ``checks``, which begins with its state."""
    console.say("", "Checked before the start", "bold")
    for check in dict.fromkeys(checks):
        console.say(f" {check}", f"  {check.state:<11}", COLOURS[check.state])
