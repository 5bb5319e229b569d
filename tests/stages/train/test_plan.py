"""What a run is made of: the reduced vocabulary, the taps, and the draft that it starts from."""

from collections import Counter

import pytest
import torch
from tiny_errors import refused

from data_specs.errors import UserError
from data_specs.manifest import fingerprint
from pipeline.config import ConfigError
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.registry import head_rows
from stages.train import loop, plan


def test_the_draft_vocabulary_is_the_most_frequent_answer_tokens(cached) -> None:
    setup = plan.prepare(cached.config("eagle3"), cached.cache)
    counts: Counter[int] = Counter()
    for number in range(5):  # the training split; the first four tokens of a sample are the prompt's
        counts.update(setup.samples.reader.read(number).input_ids[4:].tolist())
    ids = setup.draft.ids.tolist()
    assert ids == sorted(ids) and len(set(ids)) == 40
    left_out = max(n for token, n in counts.items() if token not in ids)
    assert all(counts[token] >= left_out for token in ids)
    assert sum(n for token, n in counts.items() if token in ids) < sum(counts.values())


def test_a_vocabulary_that_is_not_reduced_is_refused(cached) -> None:
    config = cached.config("eagle3")
    config.drafter.vocab_size = 272
    with pytest.raises(ConfigError, match="drafter.vocab_size=272"):
        plan.prepare(config, cached.cache).draft  # noqa: B018


def test_a_reduced_draft_of_an_artifact_is_evaluated_with_the_targets_head(cached) -> None:
    artifact = loop.run_train(cached.config("eagle3", steps=1), cached.store, cached.cache)
    assert artifact is not None
    tensors = plan.load_tensors(cached.config().target)
    draft = checkpoint.load(artifact.path, tensors)
    assert torch.equal(draft.lm_head.weight, head_rows(draft, tensors.head))
    assert torch.equal(draft.target_head, tensors.head)


def test_taps_that_are_read(cached) -> None:
    """The cache has the taps 0 and 2."""
    config = cached.config("dspark")
    config.drafter.num_taps = 1
    setup = plan.prepare(config, cached.cache)
    assert setup.draft.config.target_layer_ids == [2] and setup.draft.fc.weight.shape == (32, 32)
    micro = setup.shares[0]
    number = int(micro.batch.samples[0])
    assert torch.equal(micro.batch.hidden[0], setup.samples.reader.read(number).hidden[:, 32:])
    config.drafter.num_taps = 3
    with refused(ConfigError, "drafter.num_taps=3", [0, 2]):
        plan.prepare(config, cached.cache)
    assert plan.prepare(cached.config("mtp"), cached.cache).draft.config.target_layer_ids == []


@pytest.mark.parametrize(
    "algorithm,drafts,rows", [("dspark", 3, 272), ("dflash", 3, 272), ("eagle3", 3, 40), ("mtp", 1, 272)]
)
def test_flops_count_what_is_trained(cached, algorithm: str, drafts: int, rows: int) -> None:
    setup = plan.prepare(cached.config(algorithm), cached.cache)
    taps = len(setup.taps)
    blocks, context = 2 * 4, 2 * (12 + 30 + 9 + 20 + 17) / 5
    products = setup.trainable - (272 * 4 if algorithm == "dspark" else 0) + rows * 32
    assert plan.step_flops(setup) == blocks * drafts * 6 * products + context * 6 * taps * 32 * 32


# --- init.draft ----------------------------------------------------------------------------------------------


def test_a_dspark_starts_from_a_trained_dflash(cached) -> None:
    """Named as an artifact; what counts for the fingerprint is what it holds."""
    first = cached.config("dflash", steps=2)
    first.drafter.block_size, first.drafter.sample_from_anchor = 3, True
    dflash = loop.run_train(first, cached.store, cached.cache)
    assert dflash is not None
    config = cached.config("dspark", steps=2)
    inputs = []
    for source in (None, "tiny_dflash", "tiny_dflash:v0", str(dflash.path)):
        config.drafter.init.draft = source
        setup = plan.prepare(plan.with_start(config, cached.store), cached.cache)
        inputs.append(fingerprint(setup.inputs))
        theirs, ours = checkpoint.load(dflash.path).state_dict(), setup.draft.state_dict()
        assert torch.equal(ours["fc.weight"], theirs["fc.weight"]) is (source is not None)
    assert inputs[0] != inputs[1] == inputs[2] == inputs[3]
    assert torch.equal(ours["layers.0.mlp.up_proj.weight"], theirs["layers.0.mlp.up_proj.weight"])
    assert config.drafter.init.draft == str(dflash.path), "the run's own config is not changed"
    made = loop.run_train(config, cached.store, cached.cache)
    assert made is not None and made.manifest.config["drafter"]["init"]["draft"] == str(dflash.path)


def test_a_start_that_is_not_there_is_named(cached) -> None:
    config = cached.config()
    config.drafter.init.draft = "nowhere:v3"
    with pytest.raises(UserError, match="nowhere:v3"):
        loop.run_train(config, cached.store, cached.cache)


def test_a_start_of_the_other_convention_is_refused(cached) -> None:
    """Its slots mean other positions, although every tensor has the right shape."""
    fill_in = cached.config("dflash", steps=1)  # 1+N
    made = loop.run_train(fill_in, cached.store, cached.cache)
    config = cached.config("dspark", steps=2)
    config.drafter.init.draft = str(made.path)
    with refused(UserError, f"drafter.init.draft={made.path}", "sample_from_anchor", True, False):
        loop.run_train(config, cached.store, cached.cache)


# --- what is left open -----------------------------------------------------------------------------------------


def test_small_data_get_a_run_that_trains(cached) -> None:
    """What is chosen is part of the run's config; what comes out is that of the same numbers given."""
    open_ = {"steps": None, "global_batch": None, "evaluate_every": None}
    setup = plan.prepare(cached.config(**open_), cached.cache)
    train = setup.config.train
    assert (train.global_batch, train.epochs, train.evaluate_every) == (5, 100.0, 10)
    assert (setup.steps, setup.passes, setup.sharing.global_batch) == (100, 100.0, 5)
    given = cached.config(steps=None, epochs=100.0, global_batch=5, evaluate_every=10)
    assert fingerprint(plan.prepare(given, cached.cache).inputs) == fingerprint(setup.inputs)
