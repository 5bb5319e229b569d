import os
import time
from pathlib import Path

from rich.console import Console

from pipeline.store import listing
from pipeline.store.artifacts import Store
from pipeline.store.lease import Lease
from pipeline.store.leftovers import leftovers


def test_what_is_not_committed_is_listed_with_size_and_age(tmp_path: Path, capsys, monkeypatch) -> None:
    store = Store(tmp_path)
    store.commit(store.begin("draft", "whole", 1, "a" * 16, {}, {}), {})
    work = store.begin("draft", "t_dspark", 1, "b" * 16, {}, {})
    (work.path / "run").mkdir()
    (work.path / "run" / "metrics.jsonl").write_bytes(bytes(3000))
    old = time.time() - 7200
    for path in (work.path / "run" / "metrics.jsonl", work.path / "run", work.path):
        os.utime(path, (old, old))
    lease = Lease(work.path, "run")
    assert lease.take()
    claim, partial = sorted(leftovers(tmp_path), key=lambda x: x.path)
    lease.release()
    assert claim.path == tmp_path / "draft/t_dspark/.claims" / f"{work.path.name}.run.lock"
    assert (partial.path, partial.size) == (work.path, 3000) and 7200 <= partial.seconds < 7300
    assert str(claim) == str(partial) == "the command that made draft t_dspark (stage=train)"
    monkeypatch.setattr(listing.console, "console", Console(width=250))
    listing.show(store)
    shown = capsys.readouterr().out
    assert work.path.name in shown and "stage=train" in shown and "2 h 00 min ago" in shown


def test_a_tidy_store_has_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(store.begin("draft", "whole", 1, "a" * 16, {}, {}), {})
    assert list(leftovers(tmp_path)) == list(leftovers(tmp_path / "none")) == []
