"""Figures of a run under load, computed from its steps and times, whether real or simulated.

Speeds are tokens per second. ``p95`` is always the bad end: 95 % of the requests are faster than the p95 of a speed
(its 5 % quantile), and 95 % take less than the p95 of a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_specs.results.study import LoadMetrics
from pipeline.decoding.steps import Step, Times

PARTS = ("prefill", "draft", "schedule", "verify")


def metrics(steps: Sequence[Step], times: Sequence[Times]) -> LoadMetrics:
    """All figures of a run; None for those that it does not define (no drafts, answers of one token).

    throughput          tokens per second from the first arrival to the last finish
    steady              tokens per second without ramp-up and drain
    speed               tokens per second that a user sees after the first token (all tokens / all users' time)
    speed_p50, _p95     quantiles of that speed over the users
    ttft_p50, _p95      seconds from arrival to the first token
    budget              tokens verified per request and step, including the anchor
    accepted_length     tokens emitted per request and verification step, including the bonus token
    acceptance          accepted drafts / verified drafts
    requests            mean number of requests in a verification step
    *_share             share of the run's time: prefill, draft, schedule, verify, idle (the rest)
    """
    seconds = max(t.finished for t in times) - min(t.arrival for t in times)
    decoding = [s for s in steps if s.requests]
    served = sum(s.requests for s in decoding)
    verified = sum(s.verified for s in decoding)
    # A request's first token comes from its prefill, all others from verification.
    decoded = sum(t.tokens - 1 for t in times)
    speeds = [t.speed for t in times if t.speed is not None]
    waits = [t.first_token - t.arrival for t in times]
    return LoadMetrics(
        tokens=sum(t.tokens for t in times),
        seconds=seconds,
        steps=len(steps),
        throughput=_ratio(sum(t.tokens for t in times), seconds),
        steady=steady(steps, times),
        speed=_ratio(decoded, sum(t.finished - t.first_token for t in times)),
        speed_p50=_quantile(speeds, 0.5),
        speed_p95=_quantile(speeds, 0.05),
        ttft_p50=_quantile(waits, 0.5),
        ttft_p95=_quantile(waits, 0.95),
        budget=_ratio(verified, served),
        accepted_length=_ratio(decoded, served),
        acceptance=_ratio(sum(s.accepted for s in decoding), verified - served),
        requests=_ratio(served, len(decoding)),
        **shares(steps, seconds),
    )


def steady(steps: Sequence[Step], times: Sequence[Times]) -> float | None:
    """Tokens per second from the first finish to the last admission; None if no request waited for a slot."""
    first, last = min(t.finished for t in times), max(t.admitted for t in times)
    ends = [s.began for s in steps[1:]] + [max(t.finished for t in times)]
    emitted = sum(s.emitted for s, end in zip(steps, ends, strict=True) if first < end <= last)
    return _ratio(emitted, last - first)


def shares(steps: Sequence[Step], seconds: float) -> dict[str, float | None]:
    """Share of ``seconds`` spent in each part of the steps, and idle."""
    found = {
        f"{part}_share": _ratio(sum(getattr(s, f"{part}_seconds") for s in steps), seconds) for part in PARTS
    }
    return found | {"idle_share": max(0.0, 1 - sum(share or 0.0 for share in found.values()))}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
