from pathlib import Path

from rich.console import Console

from pipeline.store import listing
from pipeline.store.artifacts import Store


def test_lineage_is_a_tree(tmp_path: Path) -> None:
    store = Store(tmp_path)
    parents: dict[str, str] = {}
    for kind, name in (
        ("answers", "t_d"),
        ("cache", "t_d"),
        ("draft", "t_dspark"),
        ("evaluation", "t_dspark"),
        ("comparison", "t_drafters"),
    ):
        work = store.begin(kind, name, 1, kind * 8, parents, {})
        store.commit(work, {"samples": 1200})
        parents = {kind: kind * 8}
    tree = listing.lineage(store.list())
    depth, node = [], tree
    while node.children:
        node = node.children[0]
        depth.append(node.label)
    assert depth == [
        "answers t_d:v0", "cache t_d:v0", "draft t_dspark:v0", "evaluation t_dspark:v0", "comparison t_drafters:v0",
    ]  # fmt: skip
    assert listing.summary(store.list()[0]) == "1,200 samples"


def test_an_empty_store_says_what_to_type(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(listing.console, "console", Console(width=200))
    listing.show(Store(tmp_path))
    assert "python -m pipeline stage=all experiment=quickstart" in capsys.readouterr().out
