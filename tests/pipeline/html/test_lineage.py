"""Lineage: back to the answers, each artifact once, also where the store does not hold one."""

from pipeline.artifacts import Store
from pipeline.html.lineage import lineage


def make(store, kind, name, fingerprint, parents):
    return store.commit(store.begin(kind, name, 1, fingerprint * 64, parents, {}), {})


def test_back_to_the_answers(tmp_path):
    store = Store(tmp_path)
    make(store, "answers", "chat", "a", {})
    make(store, "cache", "chat", "c", {"answers": "a" * 64})
    make(store, "draft", "tiny", "d", {"cache": "c" * 64, "init": "e" * 64})
    found = lineage(store, {"draft": "d" * 64})
    assert [(a.role, a.reference, a.fingerprint[0]) for a in found] == [
        ("draft", "tiny:v0", "d"), ("cache", "chat:v0", "c"), ("init", None, "e"), ("answers", "chat:v0", "a"),
    ]  # fmt: skip
    assert found[0].created is not None and found[2].created is None
    assert str(tmp_path) not in repr(found)


def test_of_nothing(tmp_path):
    assert lineage(Store(tmp_path), {}) == []
