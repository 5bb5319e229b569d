"""What the engine tests share: targets, environments, exports, and the table of results."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `import environments` in every test here

import environments  # noqa: E402
import results  # noqa: E402
import subjects  # noqa: E402
from environments import Environment  # noqa: E402

from data_specs.errors import UserError  # noqa: E402
from pipeline.config import Config, ExportConfig, StageConfig  # noqa: E402
from pipeline.store.artifacts import Artifact, Store  # noqa: E402
from stages.export.llama_cpp import Converter  # noqa: E402
from stages.export.run import run_export  # noqa: E402

ROOT = Path(__file__).parents[2]
Export = Callable[..., Path]


def engine(name: str) -> Environment:
    """The environment ``name``. If it cannot be made, the test is skipped."""
    try:
        return environments.environment(name)
    except environments.Unavailable as reason:
        pytest.skip(f"{name} is not available: {reason}")


@pytest.fixture(scope="session")
def vllm() -> Environment:
    return engine("vllm")


@pytest.fixture(scope="session")
def llama_cpp() -> Environment:
    return engine("llama_cpp")


@pytest.fixture
def converter(llama_cpp: Environment, monkeypatch: pytest.MonkeyPatch) -> Converter:
    """llama.cpp's converter, which this interpreter runs in fp32; the variables name what it imports."""
    monkeypatch.setenv("LLAMA_CPP", str(llama_cpp.folder / "llama.cpp"))
    monkeypatch.setenv("PYTHONPATH", str(llama_cpp.folder / "extras"))
    return Converter(Path(__file__).parent / "convert.py", sys.executable, "f32")


@pytest.fixture(scope="session")
def mlx() -> Environment:
    return engine("mlx")


@pytest.fixture(scope="session")
def speculators() -> Environment:
    return engine("speculators")


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> subjects.Bench:
    return subjects.Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="session")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> subjects.Bench:
    """The tiny target with one prompt, to whose answer its DSpark is overfitted (pitfall 45)."""
    bench = subjects.Bench(tmp_path_factory.mktemp("overfitted"), subjects.PROMPTS[:1])
    bench.name = "tiny, one prompt"
    bench.drafters = {"dspark": dataclasses.replace(subjects.DRAFTERS["dspark"], steps=120)}
    return bench


@pytest.fixture(scope="session")
def smollm2() -> subjects.Known:
    """SmolLM2 and the draft of a quickstart on this machine, from the store ``$DRAFTLINE_ARTIFACTS`` or ./artifacts."""
    store = Store(Path(os.environ.get("DRAFTLINE_ARTIFACTS") or ROOT / "artifacts"))
    try:
        return subjects.Known(store.resolve("draft", "smollm2_dspark").path)
    except UserError as error:
        pytest.skip(f"no draft of the quickstart (DRAFTLINE_ARTIFACTS names its store): {error}")


@pytest.fixture(scope="session")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """``export(draft, format, **settings)`` runs ``stage=export`` on a draft's folder; returns the export's folder."""
    store = Store(tmp_path_factory.mktemp("exports"))

    def made(draft: Path | Artifact, form: str, **settings: object) -> Path:
        config = Config(
            stage=StageConfig("export", ["export"]),
            artifacts=str(store.root),
            export=ExportConfig(formats=[form], **settings),  # type: ignore[arg-type]
        )
        return run_export(config, store, draft)[0].path

    return made


def is_engine(item: pytest.Item) -> bool:
    """Whether the table of results is about ``item``; the vendors' templates run in no engine."""
    return item.get_closest_marker("engine") is not None and item.path.stem != "test_vendor_templates"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin a new table if all engine tests run."""
    options, whole = session.config.option, Path(__file__).parent
    if options.collectonly or options.keyword or options.lf or not any(map(is_engine, session.items)):
        return
    if any(whole.is_relative_to(Path(word).resolve()) for word in session.config.args):
        results.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if is_engine(item):
        results.record(item, report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write results.md, the table of docs/engines.md, beside the environments."""
    if any(map(is_engine, terminalreporter._session.items)):
        shown = results.write()
        terminalreporter.write_line(f"\n{shown}\nThis table is {environments.root() / 'results.md'}.")
