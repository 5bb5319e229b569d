"""The user's own prompts as benchmarks: files in ``evaluate.files``, and prompts that ``data.benchmark`` holds back.

They are read as stage cache reads training data: every kind of file and every schema, with rejections counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline import console
from pipeline.config import Config, ConfigError, DataConfig, SourceConfig
from pipeline.config.evaluate import OWN, benchmark_names
from pipeline.prompts.benchmarks import Benchmark, Prompt, chosen, load_benchmark, load_prompts
from pipeline.prompts.heldout import contents
from pipeline.prompts.rows import asked
from pipeline.prompts.sources import RowsError
from pipeline.prompts.training import load_prompts as load_rows
from pipeline.ranks import is_main


@dataclass(frozen=True)
class OwnPrompts:
    """A benchmark of the prompts of ``data`` in ``split``. Errors name ``key``, the config key that asks for it."""

    name: str
    key: str
    data: DataConfig
    split: str = "train"

    @property
    def contents(self) -> Any:
        """Everything that decides which prompts there are. Raises ``ConfigError`` for a source that cannot be read."""
        try:
            return [self.name, self.split, self.data.max_prompts, contents(self.data)]
        except RowsError as error:
            raise ConfigError(f"{self.key}: {error}") from error


def benchmarks_of(config: Config) -> list[Benchmark | OwnPrompts]:
    """The benchmarks that ``config.evaluate`` asks for. Raises ``ConfigError`` if ``own`` has no prompts."""
    return [_benchmark(config, name) for name in config.evaluate.benchmarks]


def _benchmark(config: Config, name: str) -> Benchmark | OwnPrompts:
    if name == OWN:
        if not config.data.benchmark:
            raise ConfigError(
                f"data.benchmark={config.data.benchmark}: evaluate.benchmarks=[{OWN}] needs prompts of "
                f"data={config.data.name} that were held back from training"
            )
        return OwnPrompts(name, "data.sources", config.data, "benchmark")
    file = config.evaluate.files.get(name)
    if file is None or name in benchmark_names():
        return load_benchmark(name)
    return OwnPrompts(name, f"evaluate.files.{name}", DataConfig(name, [SourceConfig(file)], heldout=0.0))


def prompts_of(config: Config, benchmark: Benchmark | OwnPrompts) -> list[Prompt]:
    """At most ``evaluate.prompts`` prompts of ``benchmark``, with the choice and the errors of ``load_prompts``."""
    limit = config.evaluate.prompts
    if isinstance(benchmark, Benchmark):
        return load_prompts(benchmark, config.evaluate.files.get(benchmark.name), limit)
    try:
        found = load_rows(benchmark.data)
    except RowsError as error:
        raise ConfigError(f"{benchmark.key}: {error}") from error
    why = ", ".join(f"{reason} {count}" for reason, count in found.rejected.items())
    if why and is_main():
        console.say(
            f"benchmark {benchmark.name}: {found.accepted} of {found.read} rows are used; rejected: {why}"
        )
    kept = [(prompt.key, (asked(prompt.messages), prompt.tools)) for prompt in found.of(benchmark.split)]
    if not kept:
        raise ConfigError(
            f"{benchmark.key}: expected a prompt for the benchmark {benchmark.name}, found none in {found.read} rows"
            + (f" (rejected: {why})" if why else "")
        )
    return chosen(benchmark.name, kept, limit)
