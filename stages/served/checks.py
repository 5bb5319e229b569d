"""The checks before a running server is evaluated: the servers, the draft that they serve, and the benchmarks."""

from __future__ import annotations

from pipeline.decoding.job import benchmark_checks, sampler_of
from pipeline.preflight import Ahead, Check, checked
from stages.served.run import connect


def checks(ahead: Ahead) -> list[Check]:
    """Checks of what the evaluation of ``server`` needs."""
    config = ahead.config

    def servers() -> str:
        return ", ".join(known.model for known in connect(config, sampler_of(config.evaluate))[1])

    found = [checked("servers", servers), *benchmark_checks(config, set())]
    if config.draft is not None:
        found.insert(1, checked("draft that is served", lambda: str(ahead.draft())))
    return found
