"""Figures of merit from the raw rounds, each with a bootstrap interval over prompts.

Sums run over the rounds >= 1 of the answers made with the draft (round 0, the prefill, drafts nothing):

    accepted length   tau = sum(emitted) / rounds            includes the bonus: 1 if no draft is accepted
    acceptance rate   sum(accepted) / sum(proposed)
    verify rate       sum(emitted) / sum(drafted + 1)        share of verified positions that became output
    survival at k     P(accepted >= k)                       over all rounds
    conditional at k  P(accepted >= k | accepted >= k - 1 and proposed >= k)
    draft share       sum(draft seconds) / sum(draft and verify seconds); verify share: the rest
    tokens/s          answer tokens / seconds, both including the prefill
    speedup           tokens/s with the draft / tokens/s of plain decoding of the same prompts
    same answers      share of answers equal to the plain ones (1 is expected at temperature 0 in fp32)

Intervals are 95 % percentile intervals of the ratio of sums when prompts are drawn with replacement. Prompts are drawn
because answers are independent but rounds are not, and one prompt can distort a figure by half (pitfall 42).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_specs.evaluation import DRAFT, PLAIN
from data_specs.results.summary import Figure, Metrics

LEVEL = (2.5, 97.5)  # percentiles
NUMBERS = ("drafted", "proposed", "accepted", "emitted", "draft_seconds", "verify_seconds")
CONTEXT_EDGES = (512, 1024, 2048, 4096, 8192, 16384, 32768)

Array = np.ndarray
Sums = dict[str, Array]  # [P], or [P, K] by position, for P prompts


@dataclass(frozen=True)
class Figures:
    """Metrics of one set of rounds. Row 0 of each array is the value; the other rows are the resamples.

    ``metrics`` maps a name to [1+R] or, by position, [1+R, K]; ``counts`` are plain totals.
    """

    metrics: dict[str, Array]
    counts: dict[str, int]
    prompts: int


def figures(rounds: pa.Table, positions: int, resamples: int, seed: int = 0) -> Figures:
    """All metrics of ``rounds`` (schema: data_specs/evaluation.py); ``positions`` K is the longest chain.

    With fewer than two prompts there are no resamples and no intervals.
    """
    return from_sums(prompt_sums(rounds, positions), resamples, seed)


def from_sums(sums: Sums, resamples: int, seed: int = 0) -> Figures:
    """All metrics from the sums of each prompt, named as in ``prompt_sums``; NaN where a sum is not known."""
    prompts = len(sums["rounds"])
    weights = _weights(prompts, resamples if prompts > 1 else 0, seed)  # [1+R, P]
    totals = {name: weights @ values for name, values in sums.items()}
    whole = ("answers", "rounds", "emitted", "proposed", "accepted", "drafted", "tokens", "plain_tokens")
    counts = {name: int(totals[name][0]) for name in whole}
    return Figures(_metrics(totals), counts, prompts)


def average(parts: list[Figures]) -> dict[str, Array]:
    """Macro average: the mean over benchmarks of every metric, resample by resample.

    Absent values are left out. A benchmark of one prompt has no resamples, so it always counts with its value.
    """
    rows = max(len(part.metrics["speedup"]) for part in parts)

    def full(values: Array) -> Array:
        return values if len(values) == rows else np.repeat(values[:1], rows, axis=0)

    return {name: _mean(np.stack([full(part.metrics[name]) for part in parts])) for name in parts[0].metrics}


def by_context(rounds: pa.Table, positions: int, resamples: int) -> list[tuple[int, int | None, Figures]]:
    """(first position, position after the last or None, figures) of the rounds by context length (pitfall 44)."""
    context = rounds["context"].to_numpy()
    bucket = np.digitize(context, CONTEXT_EDGES)
    edges = (0, *CONTEXT_EDGES, None)
    drafted = _mask(rounds, DRAFT) & (rounds["round"].to_numpy() > 0)
    found = []
    for number in np.unique(bucket[drafted]):
        part = rounds.filter(pa.array(drafted & (bucket == number)))
        found.append((edges[number] or 0, edges[number + 1], figures(part, positions, resamples)))
    return found


def summary(metrics: dict[str, Array]) -> Metrics:
    """Every metric as a figure, or by position as a list of figures."""
    told: dict[str, Any] = {
        name: [estimate(column) for column in values.T] if values.ndim == 2 else estimate(values)
        for name, values in metrics.items()
    }
    return Metrics(**told)


def estimate(values: Array) -> Figure:
    """Value and 95 % interval of ``values`` [1+R]; either is None if it is not known."""
    resampled = values[1:][~np.isnan(values[1:])]
    low, high = (float(x) for x in np.percentile(resampled, LEVEL)) if len(resampled) else (0.0, 0.0)
    interval = (low, high) if len(resampled) else None
    return Figure(None if np.isnan(values[0]) else float(values[0]), interval)


def prompt_sums(rounds: pa.Table, positions: int) -> Sums:
    """Sums over the rounds of each prompt of all benchmarks: [P], or [P, K] by position k = 1 .. K."""
    names = pc.binary_join_element_wise(rounds["benchmark"], rounds["prompt"].cast(pa.string()), "/")
    unique, prompt = np.unique(names.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)

    def total(values: Array) -> Array:
        return np.bincount(prompt, values, minlength=len(unique))

    plain, draft = _mask(rounds, PLAIN), _mask(rounds, DRAFT)
    later = draft & (rounds["round"].to_numpy() > 0)
    column = {name: rounds[name].to_numpy() for name in NUMBERS}
    seconds = column["draft_seconds"] + column["verify_seconds"]
    sums = {name: total(column[name] * later) for name in NUMBERS}
    sums["rounds"] = total(later)
    for name, mode in (("", draft), ("plain_", plain)):
        sums |= {f"{name}tokens": total(column["emitted"] * mode), f"{name}seconds": total(seconds * mode)}
    accepted, steps = column["accepted"], range(1, positions + 1)
    reached = [later & (accepted >= k - 1) & (column["proposed"] >= k) for k in steps]
    sums["survived"] = np.stack([total(later & (accepted >= k)) for k in steps], -1)
    sums["reached"] = np.stack([total(rows) for rows in reached], -1)
    return sums | _same_answers(rounds, unique, prompt)


def _same_answers(rounds: pa.Table, unique: Array, prompt: Array) -> Sums:
    """Counts [P] of ``answers`` with the draft, ``compared`` (with a plain one) and ``same`` (as the plain one)."""
    answers: dict[tuple[int, int], dict[str, list[int]]] = {}
    order = np.lexsort([rounds["round"].to_numpy()])
    turns, modes, tokens = (rounds[name].to_pylist() for name in ("turn", "mode", "tokens"))
    for i in order:
        answers.setdefault((int(prompt[i]), turns[i]), {}).setdefault(modes[i], []).extend(tokens[i])
    sums = {name: np.zeros(len(unique)) for name in ("answers", "compared", "same")}
    for (number, _), made in answers.items():
        sums["answers"][number] += DRAFT in made
        sums["compared"][number] += len(made) == 2
        sums["same"][number] += len(made) == 2 and made[DRAFT] == made[PLAIN]
    return sums


def _metrics(t: Sums) -> dict[str, Array]:
    """Metrics from totals [1+R] or [1+R, K], by the formulas of the module's docstring."""
    busy = t["draft_seconds"] + t["verify_seconds"]
    speed, plain = _ratio(t["tokens"], t["seconds"]), _ratio(t["plain_tokens"], t["plain_seconds"])
    return {
        "accepted_length": _ratio(t["emitted"], t["rounds"]),
        "acceptance_rate": _ratio(t["accepted"], t["proposed"]),
        "verify_rate": _ratio(t["emitted"], t["drafted"] + t["rounds"]),
        "drafted_length": _ratio(t["drafted"], t["rounds"]),
        "survival": _ratio(t["survived"], t["rounds"][:, None]),
        "conditional": _ratio(t["survived"], t["reached"]),
        "draft_share": _ratio(t["draft_seconds"], busy),
        "verify_share": _ratio(t["verify_seconds"], busy),
        "draft_ms": 1000 * _ratio(t["draft_seconds"], t["rounds"]),
        "verify_ms": 1000 * _ratio(t["verify_seconds"], t["rounds"]),
        "tokens_per_second": speed,
        "plain_tokens_per_second": plain,
        "speedup": _ratio(speed, plain),
        "same_answers": _ratio(t["same"], t["compared"]),
    }


def _weights(prompts: int, resamples: int, seed: int) -> Array:
    """How often each prompt counts [1+R, P]: once in row 0, and as drawn with replacement in the others."""
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)
    return np.vstack([np.ones((1, prompts)), drawn])


def _ratio(numerator: Array, denominator: Array) -> Array:
    """Quotient, NaN where the denominator is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, np.nan)


def _mean(values: Array) -> Array:
    """Mean over the first axis of all values that are not NaN; NaN if there are none."""
    known = ~np.isnan(values)
    return _ratio(np.where(known, values, 0).sum(0), known.sum(0))


def _mask(rounds: pa.Table, mode: str) -> Array:
    mask: Array = pc.equal(rounds["mode"], mode).to_numpy().astype(bool)
    return mask
