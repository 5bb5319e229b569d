"""Small contents of summary.json, study.json and comparison.json with unusual numbers, for the tests of the pages."""

from pathlib import Path

from data_specs.results.comparison import ComparisonResult
from data_specs.results.records import parse
from data_specs.results.study import StudyResult
from data_specs.results.summary import Profile, ServedSummary, Summary
from pipeline.report.evaluation import Evaluation
from pipeline.store.lineage import Ancestor

CREATED = "2026-11-30T03:19:49+00:00"
ANCESTORS = (
    Ancestor("draft", "tiny_dspark:v2", "d" * 64, CREATED, "0123456789abcdef"),
    Ancestor("cache", None, "c" * 64),
)


def evaluation(summary, label="tiny_dspark:v0"):
    """What the pages are told of an evaluation with this summary."""
    return Evaluation(
        label, record(summary), CREATED, {"torch": "2.13.0"}, "f00dcafe12345678", "e" * 64, ANCESTORS
    )


def record(values):
    """The summary whose summary.json holds ``values``."""
    return parse(values, ServedSummary if "served" in values else Summary, Path("summary.json"))


def study_record(values=None):
    return parse(study() if values is None else values, StudyResult, Path("study.json"))


def comparison_record(values=None):
    return parse(comparison() if values is None else values, ComparisonResult, Path("comparison.json"))


def profile_record(contexts, **facts):
    """A profile of (context, points, fit): points are (tokens, seconds)."""
    values = profile() | facts
    values["contexts"] = [
        {
            "context": context,
            "points": [{"tokens": n, "seconds": s, "interval": [s, s]} for n, s in points],
            "fit": fit,
            "draft": [{"requests": 1, "seconds": 0.25, "interval": [0.2, 0.3]}],
        }
        for context, points, fit in contexts
    ]
    return parse(values, Profile, Path("profile.json"))


def told(value, spread=0.1):
    return {"value": value, "interval": None if value is None else [value - spread, value + spread / 3]}


def metrics(level, positions=3):
    return {
        "accepted_length": told(1 + level), "acceptance_rate": told(level / 3), "drafted_length": told(3.0, 0.0),
        "verify_rate": told(0.4), "draft_ms": told(12.3456789), "verify_ms": told(100 / 3), "draft_share": told(0.27),
        "verify_share": told(0.73), "tokens_per_second": told(20.0 * level), "plain_tokens_per_second": told(11.0),
        "speedup": told(1 + level / 7), "same_answers": told(1.0, 0.0),
        "survival": [told(level / (k + 2)) for k in range(positions)],
        "conditional": [told(level / 2) for _ in range(positions - 1)] + [told(None)],
    }  # fmt: skip


def quality(rounds, ece):
    """The quality of one position, with all predictions in bins 4 and 9."""
    bins = [None] * 20
    counts = [0] * 20
    predicted, observed = bins[:], bins[:]
    if rounds:
        predicted[4], predicted[9], observed[4], observed[9] = 0.22, 0.47, 0.22 - ece, 0.47 + ece
        counts[4], counts[9] = rounds - 3, 3
    return {
        "rounds": rounds, "ece": ece, "brier": 0.21, "auc": 0.77 if rounds else None, "predicted": predicted,
        "observed": observed, "counts": counts,
    }  # fmt: skip


def calibration():
    return {
        "prompts": 8, "rounds": 1234, "data": "chat", "temperatures": [1.3, 0.8123, 1.0],
        "before": [quality(40, 0.111), quality(20, 0.0567), quality(0, 0.0)],
        "after": [quality(40, 0.0111), quality(20, 0.02), quality(0, 0.0)],
    }  # fmt: skip


def sweep():
    return [
        {
            "threshold": n / 10, "accepted": 0.9 - n / 30, "rejected": 2.1 - n / 5,
            "acceptance_rate": None if n == 9 else 0.3, "accepted_length": 1.9 - n / 30,
            "exact": 5 - n // 2, "anew": n // 2,
        }
        for n in range(10)
    ]  # fmt: skip


def summary(draft="tiny_dspark", levels=None, positions=3, **facts):
    """A summary of benchmarks and their quality; zeta comes first."""
    levels = levels or {"zeta": 1.5, "alpha": 0.7}
    known = {
        "draft": draft, "target": "tiny", "sampler": {"temperature": 0.0, "top_p": None}, "threshold": 0.0,
        "max_new_tokens": 64, "thinking": None, "device": "cpu", "dtype": "float32",
        "prompts": dict.fromkeys(levels, 4),
    }  # fmt: skip
    counts = {"prompts": 4, "too_long": 0, "answers": 4, "rounds": 17, "tokens": 40}
    return {
        "facts": known | facts, "positions": positions, "order": list(levels),
        "benchmarks": {
            name: {"counts": counts, "metrics": metrics(level, positions), "finish": {"stop": 3, "length": 1}}
            for name, level in levels.items()
        },
        "macro": metrics(sum(levels.values()) / len(levels), positions),
        "context": [
            {"from": 0, "to": 512, "prompts": 8, "rounds": 30} | context(2.1),
            {"from": 32768, "to": None, "prompts": 1, "rounds": 4} | context(1.2),
        ],
        "calibration": None, "sweep": None,
    }  # fmt: skip


def context(length):
    found = metrics(length - 1)
    return {name: found[name] for name in ("accepted_length", "acceptance_rate", "draft_ms", "verify_ms")}


def profile():
    """A profile of two contexts with Bmax 3."""
    points = [{"tokens": n, "seconds": 0.0123 * n, "interval": [0.012 * n, 0.0131 * n]} for n in (1, 2, 3)]
    curves = [{"context": c, "points": points, "fit": [0.0123, 0.0246, 0.0369]} for c in (128, 512)]
    machine = {"device": "a <CPU>", "cores": 2, "threads": 2, "torch": "2.13.0", "dtype": "float32"}
    return {"machine": machine, "block": 7, "repeats": 5, "contexts": curves}


def full(**changes):
    """A summary with calibration, sweep and profile."""
    return summary(**changes) | {"calibration": calibration(), "sweep": sweep(), "profile": profile()}


def run(policy, concurrency, scale=1.0, **more):
    figures = {
        "tokens": 96.0, "seconds": 12.5, "steps": 40.0, "steady": None, "requests": float(concurrency),
        "accepted_length": 1.0 if policy == "plain" else 2.25, "ttft_p50": 0.29, "prefill_share": 0.05,
        "idle_share": 0.04, "throughput": scale * 11.7 * concurrency**0.5,
        "speed_p50": scale * 11.7 / concurrency**0.5, "speed_p95": 3.3,
        "speed": scale * 11.5 / concurrency**0.5,
        "ttft_p95": 0.71, "budget": 1.0 if policy == "plain" else 6.1 / concurrency,
        "acceptance": None if policy == "plain" else 0.31,
        "draft_share": 0.1, "verify_share": 0.8, "schedule_share": 0.01,
    }  # fmt: skip
    return {"policy": policy, "concurrency": concurrency, "metrics": figures} | more


def study():
    """A study.json as data_specs/study.py describes it."""
    policies = ("plain", "fixed_7", "algorithm_1")
    real = [run(policy, r, repeats=1, throughputs=[3.0]) for policy in policies for r in (1, 2, 4)]
    closed = [run(p, r, 900.0, sps="h100", arrival=None) for p in policies for r in (1, 64, 2048)]
    arriving = [
        run(p, 2048, 700.0 * rate, sps="h100", arrival=rate) for p in policies for rate in (0.5, 1.25)
    ]
    own = [run("plain", 1, sps="this machine", arrival=None)]
    return {
        "facts": {
            "draft": "tiny_dspark", "target": "tiny", "policies": list(policies), "sampler": {"temperature": 0.0},
            "calibrated": True, "benchmarks": ["zeta", "alpha"], "max_new_tokens": 48, "device": "cpu",
            "dtype": "float32", "drafts": 7, "threshold": 0.5, "seed": 0, "notes": {"h100": "computed"}, "prompts": 4,
        },
        "real": real, "simulated": [*own, *closed, *arriving],
        "prediction": [{"policy": "fixed_7", "concurrency": 2, "real": 16.5, "simulated": 17.1, "error": 0.6 / 16.5}],
        "fronts": {
            "measured": {
                "points": {"plain": [[5.85, 23.4], [11.7, 11.7]]}, "sla": {"plain": {"10": 15.123, "80": None}},
            },
            "h100": {"points": {}, "sla": {"algorithm_1": {"10": 1234.56, "80": 987.6}}},
        },
        "checks": {"h100": {"algorithm_1": {
            "against": ["fixed_7"], "shortfall": 0.0123, "limit": 0.02, "holds": True, "budgets": [[1, 6.1], [64, 0.1]],
            "budget_falls": True, "same_load": 0.0345, "plain_ahead_from": 2048,
        }}},
    }  # fmt: skip


def even(value, spread=0.1):
    return {"value": value, "interval": None if value is None else [value - spread, value + spread]}


def comparison():
    """A comparison.json of two drafters on two benchmarks, with one figure."""
    lengths = {"dspark": even(2.0), "mtp": even(1.5)}
    ratios = {"dspark": even(1.0, 0.0), "mtp": even(0.75, 0.05)}
    row = {"prompts": 4, "accepted_length": lengths, "ratio": ratios}
    speed = {
        "acceptance_rate": even(0.3), "drafted_length": even(7.0), "draft_ms": even(4.0), "verify_ms": even(40.0),
        "tokens_per_second": even(20.0), "speedup": even(1.5),
    }  # fmt: skip
    variants = {
        name: {
            "overrides": [f"drafter={name}"], "draft": f"t_{name}:v0", "evaluation": f"t_{name}:v1", "steps": 9,
            "trainable": 12_345, "heldout_length": 1.987,
        }
        for name in ("dspark", "mtp", "dspark_block4")
    }  # fmt: skip
    block = {
        "title": "Fig. 4: accepted length by block size", "key": "drafter.block_size", "values": [4, 8],
        "drafters": ["dspark"], "prompts": 3, "accepted_length": {"dspark": [even(1.8), even(2.0)]},
        "variants": {"dspark": ["dspark_block4", "dspark"]},
        "latency": {"dspark": [
            {"draft_ms": 5.04, "parallel_ms": 4.0, "share": 0.2},
            {"draft_ms": 8.0, "parallel_ms": 4.0, "share": 0.5},
        ]},
    }  # fmt: skip
    return {
        "facts": {
            "target": "t", "cache": "t_chat:v0", "steps": 9, "global_batch": 4, "anchors": 5, "seed": 0,
            "sampler": {"temperature": 0.0}, "max_new_tokens": 64, "device": "cpu", "dtype": "bfloat16",
        },
        "table": {
            "drafters": ["dspark", "mtp"], "order": ["zeta", "alpha", "macro average"], "prompts": 8,
            "rows": {"alpha": row, "zeta": row, "macro average": row | {"prompts": 8}},
            "conditional": {"dspark": [even(0.9), even(0.8), even(None)], "mtp": [even(0.7)]},
            "speed": {"dspark": speed, "mtp": speed | {"speedup": even(None)}},
            "variants": {"dspark": "dspark", "mtp": "mtp"},
        },
        "figures": {"block": block}, "figure_order": ["block"], "variants": variants,
        "order": ["dspark", "mtp", "dspark_block4"],
    }  # fmt: skip
