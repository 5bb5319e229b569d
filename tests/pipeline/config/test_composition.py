"""Every file of conf/ composes, and comes to the values that it stands for."""

import pytest
from composing import CONF, composed


@pytest.mark.parametrize("name", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(name: str) -> None:
    assert composed(f"experiment={name}").stage.steps


@pytest.mark.parametrize("stage", ["cache", "train", "evaluate", "all", "list"])  # compare needs drafters
def test_every_stage_composes(stage: str) -> None:
    assert composed(f"stage={stage}").stage.name == stage


GROUPS = (
    "target", "data", "answers", "capture", "drafter", "train", "deepspeed", "evaluate", "study", "export", "tracking",
)  # fmt: skip
EXTRA = {"hf": ["target.path=somewhere"], "local": ["data.sources=[{path: a.jsonl}]"]}
OPTIONS = [(g, p.stem) for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]


@pytest.mark.parametrize("group,option", OPTIONS)
def test_every_option_composes(group: str, option: str) -> None:
    extra = EXTRA.get(option, []) if group in ("target", "data") else []
    if (group, option) == ("answers", "openai"):
        extra = ["answers.openai.base_urls=[http://127.0.0.1:1/v1]"]
    config = composed(f"{group}={option}", *extra)
    assert getattr(config, group) is not None
