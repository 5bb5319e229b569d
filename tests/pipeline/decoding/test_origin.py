"""What a draft was made from: the prompts that it was trained on."""

from data_specs.answers import AnswerRow, write_answers
from pipeline.decoding.origin import trained_counts, trained_keys
from pipeline.prompts.benchmarks import Prompt
from pipeline.store.artifacts import Store


def made(store, kind, fingerprint, parents, config=None, fill=lambda path: None):
    work = store.begin(kind, "a", 1, fingerprint * 64, parents, config or {})
    fill(work.path)
    return store.commit(work, {})


def row(key, split):
    return AnswerRow(key, split, None, 0, [1], [2], "stop", "[]", None, "{}")


def chain(store):
    """The draft of a chain whose answers are to the prompts a and b, and to h, which is held out."""
    rows = [row("a", "train"), row("b", "train"), row("h", "heldout")]
    made(store, "answers", "a", {}, fill=lambda path: write_answers(path / "0.parquet", rows))
    made(store, "cache", "c", {"answers": "a" * 64})
    return made(store, "draft", "d", {"cache": "c" * 64})


def test_the_prompts_of_the_train_split_are_those_it_was_trained_on(tmp_path):
    store = Store(tmp_path)
    draft = chain(store)
    assert trained_keys(store, draft) == {"a", "b"}
    export = made(store, "export", "e", {"draft": "d" * 64})
    assert trained_keys(store, export.path) == {"a", "b"}
    prompts = {
        name: [Prompt(name, i, k, []) for i, k in enumerate(keys)]
        for name, keys in (("mine", "abhx"), ("own", "xy"))
    }
    assert trained_counts(store, draft, prompts) == {"mine": 2, "own": 0}


def test_of_a_draft_of_others_nothing_is_known(tmp_path):
    store = Store(tmp_path)
    assert trained_keys(store, tmp_path) is None and trained_keys(store, None) is None
    lost = made(store, "draft", "f", {"cache": "0" * 64})
    assert trained_keys(store, lost) is None and trained_counts(store, lost, {"mine": []}) is None
