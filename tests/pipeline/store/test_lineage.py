"""Lineage: back to the answers, each artifact once, also where the store does not hold one; what a draft led to."""

from pipeline.store.artifacts import Store
from pipeline.store.lineage import lineage, made_of_draft


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


def test_what_was_made_of_a_draft_the_latest_first(tmp_path):
    store = Store(tmp_path)
    for name, number in (("one", "1"), ("two", "2"), ("one", "3")):
        make(store, "study", name, number, {"draft": "d" * 64})
    make(store, "study", "other", "4", {"draft": "e" * 64, "init": "d" * 64})
    make(store, "evaluation", "one", "5", {"draft": "d" * 64})
    make(store, "evaluation", "none", "6", {})
    found = [(one.reference, one.manifest.created) for one in made_of_draft(store, "study", "d" * 64)]
    assert {reference for reference, _ in found} == {"one:v0", "two:v0", "one:v1"}
    assert [created for _, created in found] == sorted((created for _, created in found), reverse=True)
    assert made_of_draft(store, "evaluation", None) == []


def test_of_nothing(tmp_path):
    assert lineage(Store(tmp_path), {}) == []
