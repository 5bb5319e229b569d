"""The example drafter of CONTRIBUTING.md works as it is printed."""

import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import tiny
import tiny_cache
import torch
from omegaconf import OmegaConf

import pipeline.drafts
from pipeline import config as schema
from pipeline.decoding.sampling import Sampler
from pipeline.drafts import algorithms, registry
from pipeline.drafts.folders import checkpoint
from pipeline.drafts.model import Model
from pipeline.store.artifacts import Store
from stages.train import loop

REPOSITORY = Path(__file__).parents[1]
MODULE, LINE, YAML = "pipeline/drafts/mixed.py", "pipeline/drafts/algorithms.py", "conf/drafter/mixed.yaml"


def printed_files() -> dict[str, str]:
    """Path -> text of the indented blocks under "A new drafter"; each begins with a comment that names its file."""
    section = (REPOSITORY / "CONTRIBUTING.md").read_text().split("### A new drafter\n")[1]
    code = textwrap.dedent(
        "\n".join(line for line in section.splitlines() if line.startswith("    ") or not line)
    )
    parts = re.split(r"^# (\S+/\S+\.\w+)$", code, flags=re.M)
    return {path: text.strip() + "\n" for path, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.fixture
def drafter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> schema.DrafterConfig:
    """The example drafter, installed for one test: its module, its line of algorithms.py, its config."""
    files = printed_files()
    assert list(files) == [MODULE, LINE, YAML]
    (tmp_path / "drafts").mkdir()
    (tmp_path / "drafts" / "mixed.py").write_text(files[MODULE])
    monkeypatch.setattr(pipeline.drafts, "__path__", [*pipeline.drafts.__path__, str(tmp_path / "drafts")])
    ((name, algorithm),) = eval("{" + files[LINE] + "}", vars(algorithms)).items()
    made: type[Model] = getattr(import_module(algorithm.module), algorithm.name)
    monkeypatch.setitem(algorithms.ALGORITHMS, name, algorithm)
    monkeypatch.setitem(registry.ALGORITHMS, name, made)
    monkeypatch.setitem(registry.ARCHITECTURES, f"Qwen3{made.NAME}Model", made)
    monkeypatch.delitem(sys.modules, algorithm.module)
    own = OmegaConf.merge(OmegaConf.structured(schema.DrafterConfig), OmegaConf.create(files[YAML]))
    config = OmegaConf.to_object(OmegaConf.merge(own, {"block_size": 3, "depth": 1}))
    assert isinstance(config, schema.DrafterConfig) and config.algorithm == name
    return config


def test_the_example_drafter_trains_a_step_and_proposes(
    drafter: schema.DrafterConfig, target_folder: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "artifacts")
    cache = tiny_cache.make(store, target_folder, [12, 20, 9], heldout=1)
    config = tiny_cache.train_config(target_folder, store.root, steps=1, evaluate_every=1, checkpoint_every=1)
    config.drafter = drafter
    artifact = loop.run_train(config, store, cache)
    assert artifact is not None
    draft = checkpoint.load(artifact.path)
    assert draft.config.architectures == ["Qwen3MixedModel"]
    state = draft.start()
    draft.observe(
        state, torch.tensor([1, 2, 3]), torch.randn(3, 2 * tiny.HIDDEN), torch.randn(3, tiny.HIDDEN)
    )
    before = draft.propose(state, 4, Sampler())
    assert before.tokens.shape == (3,) and before.confidences is None
    with torch.no_grad():
        draft.mix.weight.neg_()
    assert not torch.equal(draft.propose(state, 4, Sampler()).tokens, before.tokens), (
        "decoding uses the new layer"
    )
