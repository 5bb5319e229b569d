"""Every benchmark prints its table at a tiny size. The tests check only that it runs, not its figures."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import tiny

from data_specs.sps import locate
from pipeline.drafts.folders.checkpoint import save

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Load the benchmark ``name`` with its command line; steps run once, in this process."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def once(prepare, *arguments, repeats: int = 1) -> tuple[float, float]:
        prepare(*arguments)()
        return 1.0, 1.0

    def load(name: str, *arguments: str) -> ModuleType:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        # Load it by its path, because one of them has the name of a standard module.
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
        spec.loader.exec_module(module)
        if name in ("loss", "train_step"):
            monkeypatch.setattr(module, "measure", once)
        return module

    return load


@pytest.mark.parametrize("more", [[], ["--soft"], ["--draft-rows", "12"]])
def test_loss(script, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    sizes = ["--slots", "6", "--vocabulary", "40", "--hidden", "8", "--rank", "4"]
    script("loss", *sizes, *more).main()
    assert "chunked / plain: time 1.00, memory 1.000" in capsys.readouterr().out


@pytest.mark.parametrize("more,rows", [([], 4), (["--drafters"], 6)])
def test_train_step(script, monkeypatch, capsys, more: list[str], rows: int) -> None:
    module = script("train_step", *more)
    for name, value in (("HIDDEN", 72), ("ROWS", 16_384), ("ANCHORS", 2)):
        monkeypatch.setattr(module, name, value)
    module.main()
    assert capsys.readouterr().out.count(" 1.00 ") >= rows


def test_reader(script, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--samples", "4", "--lengths", "8", "20", "--hidden", "8", "--taps", "2", "--seconds", "0.05"]
    script("reader", *sizes, "--chunk", "16", "--shard", "64", "--segment", "64").main()
    assert "samples/s" in capsys.readouterr().out


def test_codecs(script, capsys: pytest.CaptureFixture[str], target_folder: Path) -> None:
    sizes = ["--tokens", "256", "--sequence", "64", "--chunks", "16", "--shard", "64"]
    script("codecs", "--target", str(target_folder), *sizes).main()
    assert "blosc" in capsys.readouterr().out


def test_scheduler(script, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = script("scheduler")
    monkeypatch.setattr(module, "REPEATS", 2)
    module.main()
    assert "2048" in capsys.readouterr().out


def test_calibration(script, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = script("calibration")
    monkeypatch.setattr(module, "SIZES", (50, 200))
    module.main()
    assert "mean ECE before" in capsys.readouterr().out


def test_batch(script, capsys: pytest.CaptureFixture[str], target_folder: Path, tmp_path: Path) -> None:
    save(tiny.draft().eval(), tmp_path)
    sizes = ["--batch", "2", "--tokens", "3", "--prompts", "3", "--pairs", "1"]
    script("batch", "--draft", str(tmp_path), "--target", str(target_folder), *sizes).main()
    assert "batched / one at a time: " in capsys.readouterr().out


def test_sps_roofline_makes_the_table_that_is_stored(script, tmp_path: Path) -> None:
    made = tmp_path / "sps.json"
    script("sps_roofline", str(made)).main()
    assert made.read_text() == locate("h100_qwen3_4b").read_text()
