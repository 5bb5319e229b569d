"""``stage=evaluate engine=... server=URL``: a running server's own counters -> an evaluation without rounds.

A unit of work is one chunk of prompts of one benchmark, as in the in-process evaluation. If the evaluation or its
server was killed, the rerun makes the missing units only. One process asks one prompt at a time, so that the increase
of the counters belongs to one answer. With ``draft``, the report puts the draft's own evaluation beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from data_specs.evaluation import DRAFT, PLAIN, ROUNDS
from data_specs.manifest import MANIFEST, fingerprint, read_manifest
from data_specs.results.summary import ServedFacts, read_summary
from data_specs.served import ANSWERS, SCHEMA_VERSION, write_answers
from pipeline import console
from pipeline.config import Config, section
from pipeline.decoding.dialogue import WARM_UP_TOKENS, Dialogue, render
from pipeline.decoding.job import (
    ELSEWHERE,
    INCIDENTAL,
    KIND,
    check_template_of,
    chunks,
    counts_of,
    identify,
    sampler_of,
    selected_prompts,
    told,
)
from pipeline.decoding.origin import trained_counts
from pipeline.decoding.sampling import Sampler
from pipeline.http_client import Caller, ServerError, check_url
from pipeline.prompts.benchmarks import Benchmark, Prompt
from pipeline.prompts.own import OwnPrompts, benchmarks_of
from pipeline.ranks import is_main
from pipeline.report.summary import flat_metrics
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.tracking import track_figures
from pipeline.store.work import WorkShare, commit_once
from pipeline.target.files import eos_ids, identity, load_tokenizer, read_config
from pipeline.target.location import locate
from stages.served.engines import EngineServer, Identity, ServedReply, make_server
from stages.served.report import show, write_report

FILES = (f"{ANSWERS}/*.parquet", "*.json", "*.md", "*.html", "*.png")
IN_PROCESS = ("threshold", "sweep", "batch")  # settings of ``evaluate`` that do not affect a server


@dataclass(frozen=True)
class Asker:
    """Leads the dialogues of an evaluation with a server, and with a second one without a draft, if given."""

    server: EngineServer
    plain: EngineServer | None
    tokenizer: Any
    thinking: bool | None
    max_new_tokens: int
    context: int
    seed: int

    def render(self, prompt: Prompt, messages: list[dict[str, Any]]) -> list[int]:
        """The token ids of ``messages``, rendered as for training.

        Raises ``ConfigError`` naming a prompt that the template refuses.
        """
        return render(self.tokenizer, self.thinking, prompt, messages)

    def room(self, ids: list[int]) -> int:
        """The number of new tokens that fit after ``ids`` into the contexts of the target and the servers."""
        return self.context - len(ids)

    def answer(self, prompts: list[Prompt], advance: Callable[[Prompt], None]) -> list[dict[str, Any]]:
        """Ask ``prompts`` one after the other; returns rows of data_specs/served.SCHEMA, one per answer."""

        async def ask() -> list[dict[str, Any]]:
            rows = []
            async with self.server.caller.client() as client:
                for prompt in prompts:
                    rows += await self._dialogue(client, prompt)
                    advance(prompt)
            return rows

        return asyncio.run(ask())

    async def _dialogue(self, client: httpx.AsyncClient, prompt: Prompt) -> list[dict[str, Any]]:
        """Ask all turns; both servers see the history with the draft's answers, so that their answers compare."""
        dialogue, rows = Dialogue(self, prompt), []
        while (turn := dialogue.ask()) is not None:
            for mode, server in ((DRAFT, self.server), (PLAIN, self.plain)):
                if server is not None:
                    seed = self._seed(prompt, turn.number, mode)
                    reply = await server.answer(client, turn.ids, turn.limit, seed)
                    rows.append(_row(prompt, turn.number, mode, len(turn.ids), reply))
                    if mode == DRAFT:
                        dialogue.follow(reply.ids)
        return rows

    def warm_up(self, prompt: Prompt) -> float:
        """Ask for a few tokens and return seconds per token; raises ``ServerError`` if the server drafts nothing."""

        async def ask() -> float:
            first = next(i for i, message in enumerate(prompt.messages) if message["role"] == "user")
            ids = self.render(prompt, prompt.messages[: first + 1])[: self.context - WARM_UP_TOKENS]
            async with self.server.caller.client() as client:
                reply = await self.server.answer(client, ids, WARM_UP_TOKENS, 0)
                if self.plain is not None:
                    await self.plain.answer(client, ids, WARM_UP_TOKENS, 0)
            if len(reply.ids) > 2 and not (reply.counters and reply.counters.drafted):
                raise ServerError(
                    f"server={self.server.url}: an answer of {len(reply.ids)} tokens had no drafted token; was the "
                    f"server started with a draft (launch/serve_draft.sh {self.server.ENGINE} EXPORT TARGET)?"
                )
            return reply.seconds / len(reply.ids)

        return asyncio.run(ask())

    def _seed(self, prompt: Prompt, turn: int, mode: str) -> int:
        """A seed for one answer (31 bits), so that a resumed evaluation asks for the same draws."""
        text = f"{self.seed} {prompt.benchmark} {prompt.index} {prompt.key} {turn} {mode}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class ServedJob:
    """What to evaluate, and how the store finds it again."""

    name: str
    draft: str | None
    promised: Artifact | None  # the draft's own evaluation
    parents: dict[str, str]
    sampler: Sampler
    identities: list[Identity]
    measured: str  # fingerprint of the answers
    fingerprint: str  # of the answers and ``promised``


def run_served(config: Config, store: Store, draft: Artifact | Path | None) -> Artifact | None:
    """Evaluate ``config.server``, which serves ``draft`` (an artifact, an export, a folder), if that is known.

    Returns the evaluation, new or reused; None with ``plan``, and in all ranks except the first. Raises ``ConfigError``
    for settings that cannot be used, and ``ServerError`` for such a server.
    """
    if not is_main():
        return None
    benchmarks = benchmarks_of(config)
    sampler = drafted_by(str(config.engine), sampler_of(config.evaluate))
    asker, identities = connect(config, sampler)
    job = make_job(config, store, draft, benchmarks, sampler, identities)
    found = store.find(KIND, job.fingerprint)
    if found is None:
        prompts = selected_prompts(config, benchmarks)
        if config.plan:
            _show_plan(config, asker, prompts)
            return None
        return _evaluate(config, store, job, asker, prompts, trained_counts(store, draft, prompts))
    console.say(
        f"Reusing the evaluation {found.reference} ({found.path}); if the server has changed, set client.note=... to "
        "make another"
    )
    show(found)
    return found


def drafted_by(engine: str, sampler: Sampler) -> Sampler:
    """``sampler`` with the draft sampling that ``engine`` really uses; llama.cpp always drafts greedily."""
    if engine != "llama_cpp" or sampler.greedy:
        return sampler
    console.say("llama.cpp drafts greedily: recorded as draft_sampling greedy")
    return replace(sampler, draft_sampling="greedy")


def connect(config: Config, sampler: Sampler) -> tuple[Asker, list[Identity]]:
    """Load the target's tokenizer and ask the servers for their identities; raises the errors of ``run_served``."""
    for name in ("server", "plain_server"):
        if (url := getattr(config, name)) is not None:
            check_url(url, name, "client.api_key_env")
    caller, folder = Caller(config.client, "client"), locate(config.target)
    urls = [str(config.server), *([config.plain_server] if config.plain_server else [])]
    servers = [make_server(config, url, caller, sampler, eos_ids(folder)) for url in urls]
    target = read_config(folder, config.target)

    async def ask() -> list[Identity]:
        async with caller.client() as client:
            return [await server.identify(client) for server in servers]

    identities = asyncio.run(ask())
    for server, known in zip(servers, identities, strict=True):
        _check_model(config, folder, target.hidden_size, server, known)
    contexts = [known.context for known in identities if known.context is not None]
    asker = Asker(
        servers[0], servers[1] if len(servers) > 1 else None, load_tokenizer(folder, config.target),
        config.target.thinking, config.evaluate.max_new_tokens, min([target.max_position_embeddings, *contexts]),
        config.seed,
    )  # fmt: skip
    return asker, identities


def _check_model(config: Config, folder: Path, hidden: int, server: EngineServer, known: Identity) -> None:
    """Raise ``ServerError`` for a model of another size than the target; print a note if only its name differs."""
    if known.hidden is not None and known.hidden != hidden:
        raise ServerError(
            f"{server.url}: expected the target {config.target.name} of size {hidden}, but it serves {known.model} of "
            f"size {known.hidden}"
        )
    names = {config.target.name, folder.name, config.target.path.rstrip("/").rpartition("/")[2]}
    if known.hidden is None and known.model not in names:
        console.say(f"{server.url} serves {known.model}; expected the target {config.target.name}")


def make_job(
    config: Config, store: Store, draft: Artifact | Path | None, benchmarks: list[Benchmark | OwnPrompts],
    sampler: Sampler, identities: list[Identity],
) -> ServedJob:  # fmt: skip
    """Identify the evaluation by servers, draft, target, benchmarks and settings; find the draft's own evaluation."""
    name, made_of = _draft(config, draft)
    ignored = (*INCIDENTAL, *ELSEWHERE, *IN_PROCESS)
    settings = {key: value for key, value in section(config.evaluate).items() if key not in ignored}
    measured = fingerprint(
        "served", SCHEMA_VERSION, config.engine, config.server, config.plain_server, config.client.note,
        [asdict(one) for one in identities], made_of, identity(locate(config.target)), config.target.rendering,
        config.seed, sampler.effective(), settings, *told(config, benchmarks),
    )  # fmt: skip
    promised = find_promised(store, made_of, config.evaluate.benchmarks)
    parents = {} if made_of is None else {"served_draft": made_of}
    if promised is not None:
        parents["promised"] = promised.manifest.fingerprint
    shown = re.sub(r"[^A-Za-z0-9._-]", "-", name or identities[0].model).lstrip("._-") or "model"
    whole = fingerprint(measured, parents)
    return ServedJob(
        f"{shown}_{config.engine}", name, promised, parents, sampler, identities, measured, whole
    )


def _draft(config: Config, draft: Artifact | Path | None) -> tuple[str | None, str | None]:
    """Name and fingerprint of the draft that is served; for an export, the fingerprint of its original draft."""
    if draft is None:
        return None, None
    check_template_of(config, draft)
    if isinstance(draft, Path) and (draft / MANIFEST).is_file():
        manifest = read_manifest(draft)
        return manifest.name, manifest.parents.get("draft", manifest.fingerprint)
    _, name, made_of = identify(draft)
    return name, made_of


def find_promised(store: Store, draft: str | None, benchmarks: list[str]) -> Artifact | None:
    """The latest in-process evaluation that covers all ``benchmarks``, of the draft with the fingerprint ``draft``."""
    made = [
        one
        for one in store.list(KIND)
        if draft is not None
        and one.manifest.parents.get("draft") == draft
        and (one.path / ROUNDS).is_dir()
        and set(benchmarks) <= set(one.manifest.config.get("evaluate", {}).get("benchmarks", []))
    ]
    return max(made, key=lambda one: one.manifest.created, default=None)


def _evaluate(
    config: Config, store: Store, job: ServedJob, asker: Asker, prompts: dict[str, list[Prompt]],
    trained: dict[str, int] | None,
) -> Artifact:  # fmt: skip
    recorded: dict[str, Any] = {name: section(getattr(config, name)) for name in ("target", "evaluate")}
    recorded |= {"seed": config.seed, "sampler": job.sampler.effective(), "measured": job.measured}
    recorded |= {name: getattr(config, name) for name in ("engine", "server", "plain_server")}
    recorded |= {"client": section(config.client), "served": [asdict(one) for one in job.identities]}
    work = store.begin(KIND, job.name, SCHEMA_VERSION, job.fingerprint, job.parents, recorded)
    (work.path / ANSWERS).mkdir(exist_ok=True)
    _take_over(store, job, work.path)
    _answer(config, work, asker, prompts)
    facts = _facts(config, job, asker, prompts, trained)

    def finish() -> dict[str, Any]:
        for left in work.path.glob(f"{ANSWERS}/.*.tmp"):  # of killed runs
            left.unlink()
        result = write_report(work, store, facts, asker.server.eos, job.promised, config.evaluate.bootstrap)
        return counts_of(result)

    artifact = commit_once(store, work, finish, FILES)
    used = {"evaluation": job.promised} if job.promised else {}
    figures = flat_metrics(read_summary(artifact.path))
    track_figures(config.tracking, store.root, artifact, figures, used)
    show(artifact)
    return artifact


def _take_over(store: Store, job: ServedJob, folder: Path) -> None:
    """Copy the answers of an earlier evaluation that differs only in the draft's own evaluation beside it."""
    for artifact in reversed(store.list(KIND)):
        if artifact.manifest.config.get("measured") == job.measured:
            for path in sorted((artifact.path / ANSWERS).glob("*.parquet")):
                if not (folder / ANSWERS / path.name).exists():
                    partial = folder / ANSWERS / f".{path.name}.tmp"
                    shutil.copy(path, partial)
                    partial.rename(folder / ANSWERS / path.name)
            console.say(f"Reusing the answers of {artifact.reference}")
            return


def _answer(config: Config, work: Work, asker: Asker, prompts: dict[str, list[Prompt]]) -> None:
    """Get answers to all ``prompts``, chunk by chunk, until all chunks are answered."""
    units = chunks(prompts, config.evaluate.chunk_prompts)

    def is_done(unit: str) -> bool:
        """If the folder is gone, another process has committed the evaluation, so every unit counts as done."""
        path = work.path / ANSWERS / f"{unit}.parquet"
        return path.is_file() or not path.parent.is_dir()

    share = WorkShare(work.path, list(units), is_done)
    left = share.remaining
    if not left:
        return
    title = f"evaluate {work.name}"
    if len(left) < len(units):
        console.say(f"{title}: {share.done} of {len(units)} chunks are already answered")
    asker.warm_up(units[left[0]][0])
    with console.progress(title, sum(len(units[unit]) for unit in left)) as bar:
        for unit in share:
            rows = asker.answer(units[unit], lambda prompt: bar.advance(1, prompt.benchmark))
            if not share.is_lost:
                write_answers(work.path / ANSWERS / f"{unit}.parquet", rows)


def _row(prompt: Prompt, turn: int, mode: str, context: int, reply: ServedReply) -> dict[str, Any]:
    """One row of data_specs/served.SCHEMA."""
    counted = asdict(reply.counters) if reply.counters else {}
    return {
        "benchmark": prompt.benchmark, "prompt": prompt.index, "key": prompt.key, "turn": turn, "mode": mode,
        "context": context, "tokens": reply.ids, "seconds": reply.seconds, "finish": reply.finish,
        **{name: counted.get(name) for name in ("drafts", "drafted", "accepted", "accepted_at")},
    }  # fmt: skip


def _facts(
    config: Config,
    job: ServedJob,
    asker: Asker,
    prompts: dict[str, list[Prompt]],
    trained: dict[str, int] | None,
) -> ServedFacts:
    served, plain = job.identities[0], job.identities[1] if asker.plain else None
    return ServedFacts(
        draft=job.draft or "the server's draft",
        target=config.target.name,
        sampler=job.sampler.effective(),
        max_new_tokens=config.evaluate.max_new_tokens,
        thinking=config.target.thinking,
        device=f"{config.engine} {served.version or 'of an unknown version'}",
        dtype="as served",
        server=asker.server.url,
        model=served.model,
        plain_server=asker.plain.url if asker.plain else None,
        plain_model=plain.model if plain else None,
        note=config.client.note,
        prompts={name: len(listed) for name, listed in prompts.items()},
        trained=trained,
    )


def _show_plan(config: Config, asker: Asker, prompts: dict[str, list[Prompt]]) -> None:
    """Print answers, tokens and the longest time, which is estimated from a few tokens asked for now."""
    seconds = asker.warm_up(next(iter(prompts.values()))[0])
    rows, total = [], 0
    for name, listed in prompts.items():
        turns = sum(m["role"] == "user" for prompt in listed for m in prompt.messages)
        new = turns * config.evaluate.max_new_tokens
        total += new
        rows.append((name, len(listed), turns, f"{new:,}"))
    columns = ("benchmark", "prompts", "answers", "new tokens, at most")
    console.table(f"Plan: evaluate {asker.server.url}", columns, rows)
    ways = 2 if asker.plain else 1
    console.say(
        f"This takes at most {console.duration(total * ways * seconds)} ({1000 * seconds:.0f} ms per token, one prompt "
        "at a time). Nothing was done."
    )
