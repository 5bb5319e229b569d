"""A comparison end to end on the tiny target: every variant once, resume, refusals, report, plan."""

import json
from pathlib import Path

import pytest
import tiny_cache
from omegaconf import OmegaConf

from data_specs.manifest import read_json
from data_specs.results.comparison import MARKDOWN, RESULT
from pipeline import __main__ as entry
from pipeline.config import CompareConfig, Config, ConfigError, EvaluateConfig, FigureConfig, StageConfig
from pipeline.preflight import Ahead
from pipeline.store import listing
from pipeline.store.artifacts import Artifact, Store
from stages import preflight
from stages.compare.variants import lay_out
from stages.evaluate import run as evaluate
from stages.train import loop

QUESTIONS = [f"How much is {i} and {i}?" for i in range(4)]


def comparison(target: Path, root: Path) -> Config:
    """Two drafters in the table, and one variant more in the figure of ranks."""
    prompts = root / "math.jsonl"
    prompts.write_text("".join(json.dumps({"question": q}) + "\n" for q in QUESTIONS))
    config = tiny_cache.train_config(target, root / "artifacts", steps=2, evaluate_every=2)
    config.evaluate = EvaluateConfig(
        benchmarks=["gsm8k"], files={"gsm8k": str(prompts)}, prompts=2, max_new_tokens=8, bootstrap=50,
        baseline=False, calibrate=False,
    )  # fmt: skip
    rank = FigureConfig("Ablation: rank", "drafter.markov_rank", [4, 8], ["markov"], latency=True)
    config.compare = CompareConfig(
        drafters={"markov": [], "flat": ["drafter.markov_rank=0", "drafter.confidence_head=false"]},
        table=["markov", "flat"], table_overrides=["evaluate.prompts=3", "evaluate.baseline=true"],
        figures={"rank": rank},
    )  # fmt: skip
    return config


class Comparison:
    """A comparison in a folder of its own, as ``python -m pipeline stage=compare`` would run it."""

    def __init__(self, target: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = comparison(target, root)
        self.store = Store(self.config.artifacts)
        tiny_cache.make(self.store, target, [12, 30, 9, 20], heldout=1)
        base = OmegaConf.structured(self.config)  # without Hydra: the overrides are values only
        layout = lay_out(self.config, lambda more: OmegaConf.merge(base, OmegaConf.from_dotlist(more)))
        monkeypatch.setattr(entry, "composed_variants", lambda _: layout)
        monkeypatch.setattr(entry, "_task", tuple)
        self.trained: list[str] = []
        train = loop._train

        def counted(setup, store, name, inputs, claim):
            self.trained.append(name)
            return train(setup, store, name, inputs, claim)

        monkeypatch.setattr(loop, "_train", counted)

    def run(self) -> Artifact | None:
        made: dict[str, Artifact] = {}
        entry.run_compare(self.config, self.store, made)
        return made.get("comparison")

    def made(self) -> list[str]:
        return [f"{a.manifest.kind} {a.reference}" for a in self.store.list()]


@pytest.fixture
def tiny_comparison(target_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    return Comparison(target_folder, tmp_path, monkeypatch)


EVERYTHING = [
    "cache tiny_chat:v0", "comparison tiny_drafters:v0",
    "draft tiny_flat:v0", "draft tiny_markov:v0", "draft tiny_markov_rank8:v0",
    "evaluation tiny_flat:v0", "evaluation tiny_markov:v0", "evaluation tiny_markov_rank8:v0",
]  # fmt: skip


def test_a_comparison_that_is_killed_goes_on_and_a_second_one_does_nothing(
    tiny_comparison: Comparison, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    whole = evaluate.write_rounds

    def dies(path: Path, rows) -> None:
        if "flat" in str(path):
            raise KeyboardInterrupt
        whole(path, rows)

    monkeypatch.setattr(evaluate, "write_rounds", dies)
    with pytest.raises(KeyboardInterrupt):
        tiny_comparison.run()
    assert tiny_comparison.made() == [
        "cache tiny_chat:v0", "draft tiny_flat:v0", "draft tiny_markov:v0", "evaluation tiny_markov:v0",
    ]  # fmt: skip
    monkeypatch.setattr(evaluate, "write_rounds", whole)
    capsys.readouterr()

    artifact = tiny_comparison.run()
    # In both runs together each was trained once.
    assert tiny_comparison.trained == ["tiny_markov", "tiny_flat", "tiny_markov_rank8"]
    assert tiny_comparison.made() == EVERYTHING
    shown = capsys.readouterr().out
    for line in (
        "variant 1 of 3: markov (evaluate.prompts=3 evaluate.baseline=true)",
        "variant 3 of 3: markov_rank8 (drafter.markov_rank=8)",
        "tiny_flat:v0 (",
        "Draft tiny_markov_rank8:v0: 2 steps",
        "flat: accepted length ",
    ):
        assert line in shown
    assert shown.count("Evaluation ") == 0 and shown.count("Comparison ") == 1  # one last screen, not four
    check_artifact(artifact, tiny_comparison.store)

    again = tiny_comparison.run()
    assert again.path == artifact.path
    assert tiny_comparison.made() == EVERYTHING and len(tiny_comparison.trained) == 3
    assert "tiny_drafters:v0 (" in capsys.readouterr().out


def check_artifact(artifact: Artifact, store: Store) -> None:
    """Files, parents, counts and contents of the comparison of ``EVERYTHING``."""
    artifact.verify()
    assert sorted(artifact.manifest.files) == [
        "comparison.json", "comparison.md", "comparison_conditional.png", "comparison_lengths.png",
        "comparison_rank.png", "report.html",
    ]  # fmt: skip
    evaluations = {a.manifest.name: a.manifest.fingerprint for a in store.list("evaluation")}
    assert artifact.manifest.parents == {
        "markov": evaluations["tiny_markov"], "flat": evaluations["tiny_flat"],
        "markov_rank8": evaluations["tiny_markov_rank8"],
    }  # fmt: skip
    assert {k: artifact.manifest.counts[k] for k in ("variants", "steps", "prompts")} == {
        "variants": 3, "steps": 2, "prompts": 3,
    }  # fmt: skip
    result = read_json(artifact.path / RESULT)
    assert result["order"] == ["markov", "flat", "markov_rank8"]
    assert result["table"]["rows"]["gsm8k"]["prompts"] == 3
    assert result["table"]["rows"]["gsm8k"]["ratio"]["markov"]["value"] == 1.0
    assert result["table"]["speed"]["flat"]["speedup"]["value"] > 0
    rank = result["figures"]["rank"]
    assert rank["variants"] == {"markov": ["markov", "markov_rank8"]}  # trained once for table and figure
    assert rank["prompts"] == 2  # what the figure's own variant was asked
    assert len(rank["latency"]["markov"]) == 2
    text = (artifact.path / MARKDOWN).read_text()
    assert "| markov_rank8 | tiny_markov_rank8:v0 | tiny_markov_rank8:v0 |" in text
    assert "(comparison_rank.png)" in text
    (row,) = [a for a in store.list() if a.manifest.kind == "comparison"]
    assert listing.summary(row).startswith("3 variants, 3 prompts, 2 steps")
    assert "comparison tiny_drafters:v0" in str([n.label for n in tree_nodes(listing.lineage(store.list()))])


def tree_nodes(tree):
    for child in tree.children:
        yield child
        yield from tree_nodes(child)


def test_what_is_wrong_with_a_variant_is_said_before_the_cache_is_looked_at(
    tiny_comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(task: tuple[str, ...]) -> None:
        raise ConfigError(f"compare: variant {task[0]}")

    monkeypatch.setattr(preflight, "composed_variants", refuse)
    monkeypatch.setattr(preflight, "checks_of", lambda *_: pytest.fail("the cache was looked at first"))
    tiny_comparison.config.stage = StageConfig("compare", ["cache", "compare"])
    with pytest.raises(ConfigError, match="compare: variant flat"):
        preflight.of_steps(Ahead(tiny_comparison.config), ("flat",))


def test_plan_counts_runs_and_makes_nothing(tiny_comparison: Comparison, capsys) -> None:
    tiny_comparison.config.plan = True
    assert tiny_comparison.run() is None
    shown = capsys.readouterr().out
    assert "Plan of stage compare: 3 variants on tiny" in shown
    (row,) = [line.split() for line in shown.splitlines() if "markov_rank8" in line]
    assert row[:2] == ["markov_rank8", "2"]
    assert "3 runs with 6 steps" in shown and "Nothing was done." in shown
    assert tiny_comparison.made() == ["cache tiny_chat:v0"]
