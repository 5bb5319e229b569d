"""What a draft was made from: the prompts that it was trained on, its target and its data."""

from data_specs.answers import AnswerRow, write_answers
from pipeline.config import Config, DataConfig, SourceConfig, TargetConfig
from pipeline.decoding.origin import trained_counts, trained_keys, with_own
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


# --- its own target and data ------------------------------------------------------------------------------------

TARGET = {"name": "qwen", "path": "/models/qwen", "num_taps": 3, "device": "cuda", "of_the_future": 1}
DATA = {"name": "chat", "sources": [{"path": "chat.jsonl", "limit": 9}], "heldout": 0.1, "benchmark": 0.2}


def config():
    """As a run that names neither has them."""
    return Config(
        target=TargetConfig("smollm2", "/models/smollm2"), data=DataConfig("quickstart", heldout=0.05)
    )


def trained(store):
    """A draft whose run named a cache, so that its own ``data`` were the default's."""
    made(store, "answers", "a", {}, {"data": DATA})
    made(store, "cache", "c", {"answers": "a" * 64})
    settings = {"target": TARGET, "data": {"name": "quickstart", "sources": []}}
    return made(store, "draft", "d", {"cache": "c" * 64}, settings)


def test_target_and_data_are_the_drafts_own(tmp_path):
    store = Store(tmp_path)
    own = with_own(config(), store, trained(store), ["stage=evaluate", "draft=a"])
    assert own.target == TargetConfig("qwen", "/models/qwen", num_taps=3)  # the device is this machine's
    assert own.data == DataConfig("chat", [SourceConfig("chat.jsonl", limit=9)], heldout=0.1, benchmark=0.2)
    export = made(store, "export", "e", {"draft": "d" * 64})
    assert with_own(config(), store, export.path, []) == own


def test_what_the_command_line_names_stays(tmp_path):
    store = Store(tmp_path)
    draft, run = trained(store), config()
    assert with_own(run, store, draft, ["target=hf", "data=local"]) == run
    assert with_own(run, store, draft, ["target.path=x", "++data.sources=[]"]) == run
    own = with_own(run, store, draft, ["target=hf", "data.heldout=0.05"])
    assert (own.target.name, own.data.name, own.data.heldout, own.data.benchmark) == (
        "smollm2",
        "chat",
        0.05,
        0.2,
    )


def test_what_is_not_known_stays(tmp_path):
    store, run = Store(tmp_path), config()
    assert with_own(run, store, tmp_path, []) is run
    assert with_own(run, store, made(store, "draft", "f", {}, {"imported": {}}), []) is run
    alone = made(store, "draft", "d", {"cache": "0" * 64}, {"target": TARGET, "data": DATA})
    assert with_own(run, store, alone, []).data.name == "chat"  # its answers are gone: the run's own word
