"""What runs that ended before their commit have left in the store: working folders and claims."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.store.lease import CLAIMS

PATTERNS = ("*/*/.partial-*", "*/*/.commit-*", f"*/*/{CLAIMS}/*")
# Kind -> the stage that makes it.
STAGES = {"answers": "cache", "draft": "train", "evaluation": "evaluate", "comparison": "compare"}


@dataclass(frozen=True)
class Leftover:
    """A file or folder that no manifest names; ``seconds`` have passed since the last change in it."""

    path: Path
    size: int
    seconds: float

    def __str__(self) -> str:
        kind, name = self.path.parts[-4:-2] if self.path.parent.name == CLAIMS else self.path.parts[-3:-1]
        return f"the command that made {kind} {name} (stage={STAGES.get(kind, kind)})"


def leftovers(root: Path) -> Iterator[Leftover]:
    """What is not committed below the store's ``root``, also what a live run works on. Nothing is changed."""
    now = time.time()
    for path in sorted(path for pattern in PATTERNS for path in root.glob(pattern)):
        size, changed = 0, 0.0
        for entry in [path, *path.rglob("*")]:
            with suppress(FileNotFoundError):  # of a live run, which has just removed it
                status = entry.lstat()
                size += status.st_size * (not entry.is_dir())
                changed = max(changed, status.st_mtime)
        yield Leftover(path, size, max(0.0, now - changed))
