"""Several exports of one draft by one command, as a user types it."""

import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from tiny_exports import saved

from pipeline import config as schema
from pipeline.__main__ import CONF, listed, main
from pipeline.store.artifacts import Store


@pytest.mark.parametrize(
    "typed,read",
    [
        (["export=vllm,sglang"], ["export.formats=[vllm,sglang]"]),
        (["export=[vllm,sglang]"], ["export.formats=[vllm,sglang]"]),
        (["export=[hub]"], ["export.formats=[hub]"]),
        (["export=hub"], ["export=hub"]),
        (["export.formats=[hub,mlx]"], ["export.formats=[hub,mlx]"]),
        (["-m", "export=vllm,sglang"], ["-m", "export=vllm,sglang"]),
        (["--multirun", "export=[vllm,sglang]"], ["--multirun", "export.formats=[vllm,sglang]"]),
    ],
)
def test_several_exports_are_a_list_of_formats(typed: list[str], read: list[str]) -> None:
    assert listed(typed) == read


@pytest.mark.parametrize("typed", ["export=vllm,sglang,hub", "export=[vllm,sglang,hub]"])
def test_hydra_composes_all_of_them(typed: str) -> None:
    """Without special care, Hydra would keep only the list of the group's last file."""
    schema.register()
    with initialize_config_dir(CONF, version_base=None):
        config = schema.resolve(compose("config", overrides=listed(["stage=export", typed])))
    assert config.export.formats == ["vllm", "sglang", "hub"]


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft") / "tiny"
    saved("dspark", folder)
    return folder


@pytest.mark.parametrize("typed", [["export=vllm,mlx"], ["export=[vllm,mlx]"], ["-m", "export=vllm,mlx"]])
def test_one_command_exports_a_draft_for_two_engines(
    typed: list[str], draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [f"hydra.{kind}.dir={tmp_path / 'out'}" for kind in ("run", "sweep")]
    where = [f"draft={draft}", f"artifacts={tmp_path / 'artifacts'}", *folders]
    monkeypatch.setattr(sys, "argv", ["pipeline", *typed, "stage=export", *where])
    main()
    made = Store(tmp_path / "artifacts").list("export")
    assert {a.manifest.config["format"]: a.reference for a in made} == {
        "vllm": "tiny_vllm:v0", "mlx": "tiny_mlx:v0",
    }  # fmt: skip
