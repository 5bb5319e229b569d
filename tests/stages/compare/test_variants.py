"""Which drafts a comparison trains, and that all that is wrong with one is said before the first."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from tiny_errors import refused

from pipeline import config as schema
from pipeline.config import ConfigError
from stages.compare.variants import Comparison, lay_out

CONF = Path(__file__).parents[3] / "conf"
BASE = [
    "experiment=compare_drafters", "train.steps=4", "drafter.depth=2", "evaluate.prompts=3",
    "+compare.drafters.markov=['drafter.markov_rank=8']",
    "+compare.drafters.flat=['drafter.markov_rank=0','drafter.confidence_head=false']",
    "compare.table=[markov,flat]", "compare.table_overrides=['evaluate.prompts=6']", "~compare.figures.block",
    "compare.figures.depth.values=[1,2]", "compare.figures.depth.drafters=[markov,flat]",
    "compare.figures.rank.values=[4,8]", "compare.figures.rank.drafters=[markov]",
]  # fmt: skip


def laid_out(*overrides: str) -> Comparison:
    schema.register()
    with initialize_config_dir(str(CONF), version_base=None):
        base = schema.resolve(compose("config", overrides=list(overrides)))
        return lay_out(base, lambda more: compose("config", overrides=[*overrides, *more]))


def test_what_several_figures_show_is_trained_once() -> None:
    layout = laid_out(*BASE)
    assert list(layout.variants) == ["markov", "flat", "markov_depth1", "flat_depth1", "markov_rank4"]
    assert layout.table == {"markov": "markov", "flat": "flat"}
    assert layout.figures == {
        "depth": {"markov": ["markov_depth1", "markov"], "flat": ["flat_depth1", "flat"]},
        "rank": {"markov": ["markov_rank4", "markov"]},
    }


def test_a_variant_has_a_whole_config_of_its_own() -> None:
    found = {name: v.config for name, v in laid_out(*BASE).variants.items()}
    sizes = {name: (c.drafter.name, c.drafter.depth, c.drafter.markov_rank) for name, c in found.items()}
    assert sizes == {
        "markov": ("markov", 2, 8), "flat": ("flat", 2, 0), "markov_depth1": ("markov_depth1", 1, 8),
        "flat_depth1": ("flat_depth1", 1, 0), "markov_rank4": ("markov_rank4", 2, 4),
    }  # fmt: skip
    assert {name: c.evaluate.prompts for name, c in found.items()} == {
        "markov": 6, "flat": 6, "markov_depth1": 3, "flat_depth1": 3, "markov_rank4": 3,
    }  # fmt: skip
    assert {c.train.steps for c in found.values()} == {4}


def test_an_override_that_comes_again_is_told_once() -> None:
    figure = ["compare.figures.depth.key=drafter.markov_rank", "compare.figures.depth.drafters=[markov]"]
    layout = laid_out(*BASE, *figure)
    assert layout.variants["markov_depth1"].overrides == ("drafter.markov_rank=1",)


@pytest.mark.parametrize(
    "override,named",
    [
        ("drafter.width=3", ["drafter.width:"]),
        ("drafter=magic", ["drafter/magic"]),
        ("drafter.depth=deep", ["drafter.depth:"]),
        ("drafter.depth=0", ["drafter.depth:", 1, 0]),
        ("train.steps=5", ["train.steps:", 4, 5]),
        ("data.heldout=0.1", ["data.heldout:", 0.05, 0.1]),
        ("seed=7", ["seed:", 0, 7]),
        ("evaluate.top_k=5", ["evaluate.top_k:", None, 5]),
    ],
)
def test_what_is_wrong_with_a_variant_names_it_and_the_key(override: str, named: list) -> None:
    with refused(ConfigError, "compare", "wrong", override, *named):
        laid_out(*BASE, f"+compare.drafters.wrong=['{override}']", "compare.table=[wrong]")


def test_a_figure_s_key_that_is_none() -> None:
    with refused(ConfigError, "markov_depth1", "drafter.width=1", "drafter.width:"):
        laid_out(*BASE, "compare.figures.depth.key=drafter.width")


def test_a_name_that_cannot_be_an_artifact_s() -> None:
    with refused(ConfigError, "compare", "my draft"):
        laid_out(*BASE, "+compare.drafters={my draft: ['drafter.depth=1']}", "compare.table=[my draft]")


def test_a_learning_rate_may_be_a_drafter_s_own() -> None:
    layout = laid_out(*BASE, "+compare.drafters.slow=['train.lr=1e-4']", "compare.table=[markov,slow]")
    assert layout.variants["slow"].config.train.lr == 1e-4


def test_the_experiment_s_variants() -> None:
    """Paper: Table 1, Fig. 2 (of the table's drafters), Fig. 3, Fig. 4 and the ranks."""
    layout = laid_out("experiment=compare_drafters")
    assert layout.table == {name: name for name in ("dspark", "dflash", "eagle3", "mtp")}
    assert layout.figures["depth"]["dflash"] == [
        "dflash_depth1", "dflash", "dflash_depth3", "dflash_depth4", "dflash_depth5",
    ]  # fmt: skip
    assert layout.figures["rank"] == {"dspark": ["dspark_rank16", "dspark", "dspark_rank256"]}
    assert [len(line) for line in layout.figures["block"].values()] == [4, 4, 4]
    algorithms = [layout.variants[name].config.drafter.algorithm for name in layout.table]
    assert algorithms == ["dspark", "dflash", "eagle3", "mtp"]
    prompts = {name: v.config.evaluate.prompts for name, v in layout.variants.items()}
    assert {name for name, count in prompts.items() if count == 14} == set(layout.table)


def test_the_experiment_takes_the_quickstart_s_cache() -> None:
    """What decides the fingerprints of answers and cache is the same."""
    schema.register()
    with initialize_config_dir(str(CONF), version_base=None):
        found = [
            schema.resolve(compose("config", overrides=[f"experiment={name}"]))
            for name in ("quickstart", "compare_drafters")
        ]
    for section in ("target", "data", "answers", "capture", "seed"):
        first, second = (getattr(config, section) for config in found)
        assert first == second, section
