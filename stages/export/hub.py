"""A model folder for the Hub: a layout that most engines read, and a card that describes the draft.

Block drafters have the layout that vLLM, SGLang, llama.cpp and mlx-dspark share. Eagle3 has its taps in both numberings
(vLLM and llama.cpp read one field, SGLang the other). Drafts that no engine reads (MTP, a learned start) are published
in the native layout. Nothing is uploaded unless ``export.push=true``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data_specs.calibration import Calibration
from data_specs.manifest import Manifest
from data_specs.results.summary import AnySummary, Metrics
from pipeline.report.markdown import code, escape, markdown_table
from pipeline.report.model import MACRO, number, with_interval
from stages.export import llama_cpp, mlx, sglang, vllm
from stages.export.capabilities import ExportError, refusal
from stages.export.layouts import LAYERS, STATES, block_layout, eagle3_layout
from stages.export.lineage import TargetFacts
from stages.export.source import DraftFacts, DraftSource, EngineLayout, ServeFacts, native_fields

Serve = Callable[[DraftFacts, str, str, ServeFacts], list[str]]  # draft, target, folder
SERVERS: dict[str, Serve] = {
    "vllm": vllm.serve, "sglang": sglang.serve, "llama_cpp": llama_cpp.serve, "mlx": mlx.serve,
}  # fmt: skip
NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llama_cpp": "llama.cpp", "mlx": "mlx-dspark"}
KINDS = {"dspark": "DSpark", "dflash": "DFlash (1+N)", "eagle3": "Eagle3", "mtp": "MTP"}


@dataclass(frozen=True)
class CardFacts:
    """The contents of the card besides the draft. ``lineage.provenance`` makes ``provenance``.

    ``summary`` is that of the evaluation, None without an evaluation.
    """

    repo: str
    target: TargetFacts
    provenance: dict[str, Any]
    summary: AnySummary | None
    evaluation: Manifest | None
    calibration: Calibration | None
    license: str | None
    serving: ServeFacts


def plan(source: DraftSource) -> EngineLayout:
    """The layout that most engines read, or the native one if none does."""
    facts = source.facts
    if facts.kind == "mtp" or facts.learned_start:
        return EngineLayout(native_fields(source), source.own_tensors)
    if facts.kind == "eagle3":
        return eagle3_layout(source, (STATES, LAYERS))
    return block_layout(source)


def card(source: DraftSource, known: CardFacts) -> str:
    """The README.md of the model folder."""
    parts = [
        _front_matter(source.facts, known),
        f"# {escape(known.repo.rpartition('/')[2])}",
        _what(source, known),
        _training(known),
        _accepted(known),
        _calibration(known.calibration),
        _serving(source.facts, known),
        _license(known),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(facts: DraftFacts, known: CardFacts) -> str:
    base = {"base_model": known.target.hub_id} if known.target.hub_id else {}
    tags = ["speculative-decoding", "draft-model", facts.kind, "draftline"]
    told = {"license": known.license or "other", **base, "tags": tags}
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---"


def _what(source: DraftSource, known: CardFacts) -> str:
    facts, target = source.facts, known.target
    revision = f" at revision {target.revision}" if target.revision else ""
    identity = known.provenance["target"]["identity"]
    longest = (known.provenance["training"] or {}).get("max_length")
    vocabulary = source.fields["vocab_size"]
    if facts.reduced:
        vocabulary = f"{source.fields['draft_vocab_size']} of the target's {vocabulary} tokens"
    rows = [
        ("algorithm", f"{KINDS[facts.kind]}, {facts.family} layers"),
        ("target", f"{target.hub_id or target.name}{revision}"),
        *([("target's identity", f"`{identity[:16]}`")] if identity else []),
        ("drafts a round", f"{facts.drafts}"),
        ("taps (target layers)", ", ".join(map(str, facts.taps)) or "none: the last state"),
        ("sequential head", f"{facts.head}, rank {facts.rank}" if facts.rank else "none"),
        ("confidence head", "yes" if facts.confidence else "no"),
        ("vocabulary", str(vocabulary)),
        *([("trained on samples of at most", f"{longest} tokens")] if longest else []),
    ]
    return (
        f"A draft model for speculative decoding with {escape(target.hub_id or target.name)}. Alone it writes no text: "
        "an engine drafts with it and verifies with the target, whose output it does not change.\n\n"
        + markdown_table(("", ""), [(name, value) for name, value in rows])
    )


def _training(known: CardFacts) -> str:
    about = known.provenance["training"]
    if about is None:
        return "## Training\n\nNot known: the draft was read from a folder."
    counts = known.provenance["ancestors"].get("draft", {}).get("counts", {})
    rows = [("data", str(about.get("data") or "not recorded"))]
    rows += [("source", str(source)) for source in about.get("sources", [])]
    for name in ("samples", "steps", "parameters", "trainable", "loss", "best_accepted_length"):
        if name in counts:
            value = counts[name]
            shown = f"{value:.3f}" if isinstance(value, float) else f"{value:,}"
            rows.append((name.replace("_", " "), shown))
    thinking = about.get("thinking")
    rows.append(("thinking", "the template's default" if thinking is None else str(thinking)))
    return "## Training\n\n" + markdown_table(("", ""), rows)


def _accepted(known: CardFacts) -> str:
    if known.summary is None or known.evaluation is None:
        return "## Accepted length\n\nNot measured yet: `python -m pipeline stage=evaluate` measures it."
    rows = [_row(name, b.counts.get("prompts"), b.metrics) for name, b in known.summary.benchmarks.items()]
    if known.summary.macro:
        rows.append(_row(MACRO, known.evaluation.counts.get("prompts"), known.summary.macro))
    settings = known.evaluation.config
    about = (
        f"Sampler: {settings.get('sampler')}; at most {settings['evaluate']['max_new_tokens']} new tokens; "
        f"{settings['target']['dtype']}. Accepted length: tokens per round, including the bonus token. In brackets: "
        "95 % bootstrap interval over prompts."
    )
    columns = ("benchmark", "prompts", "accepted length", "acceptance", "speedup")
    return "## Accepted length\n\n" + markdown_table(columns, rows) + "\n\n" + escape(about)


def _row(name: str, prompts: int | None, metrics: Metrics | None) -> tuple[str, ...]:
    """A row of the table; ``metrics`` is None if no prompt of the benchmark fitted the target."""
    figures = ("-", "-", "-")
    if metrics is not None:
        length, speedup = with_interval(metrics.accepted_length), with_interval(metrics.speedup)
        figures = (length, number(metrics.acceptance_rate, "{:.0%}"), speedup)
    return (name, "-" if prompts is None else str(prompts), *figures)


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return "## Calibration\n\nThe confidences are not calibrated: there is no calibration.json."
    temperatures = ", ".join(f"{t:.2f}" for t in calibration.temperatures)
    return (
        "## Calibration\n\n"
        f"calibration.json holds a temperature for each draft of a block: {temperatures}. Fitted on "
        f"{calibration.prompts} held-out prompts of {escape(calibration.data)}; "
        "the calibrated confidence is sigmoid(logit / temperature)."
    )


def readers(facts: DraftFacts) -> list[str]:
    """The engines that read this folder."""
    return [engine for engine in SERVERS if refusal(engine, facts) is None]


def _serving(facts: DraftFacts, known: CardFacts) -> str:
    """The commands for the engines that read this folder, and the reasons why the others do not."""
    lines = ["## Serving"]
    if not known.target.hub_id:
        lines.append("TARGET is the folder of the target.")
    for engine, serve in SERVERS.items():
        reason = refusal(engine, facts)
        if reason:
            lines.append(
                f"**{NAMES[engine]}**: not with this draft. {escape(reason[0].upper() + reason[1:])}."
            )
        else:
            commands = serve(facts, known.target.shown, known.repo, known.serving)
            if engine == "llama_cpp":
                commands = _converted(facts, known)
            lines.append(f"**{NAMES[engine]}**\n\n{code('sh', commands)}")
    return "\n\n".join(lines)


def _converted(facts: DraftFacts, known: CardFacts) -> list[str]:
    """The commands for llama.cpp, whose converter needs both models as folders."""
    draft, hub_id = known.repo.rpartition("/")[2], known.target.hub_id
    target = known.target.name if hub_id else "TARGET"
    commands = [f"hf download {known.repo} --local-dir {draft}"] if "/" in known.repo else []
    commands += [f"hf download {hub_id} --local-dir {target}"] if hub_id else []
    return commands + llama_cpp.serve(facts, target, draft, known.serving)


def _license(known: CardFacts) -> str:
    own = escape(known.license) if known.license else "not stated (`export.license`)"
    return (
        f"## Licence\n\n- this draft: {own}\n- the target {escape(known.target.hub_id or known.target.name)}: "
        "its own licence applies when it is served"
    )


def push(folder: Path, repo: str, private: bool) -> str:
    """Upload ``folder`` to the Hub repository ``repo``, which is made if it is missing, and return its address.

    Raises ``ExportError`` if the Hub refuses. huggingface_hub finds the token.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repo_id=repo, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Draft exported by draftline")
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        raise ExportError(f"export.repo={repo}: the Hub did not take the draft: {error}") from error
    return f"https://huggingface.co/{repo}"
