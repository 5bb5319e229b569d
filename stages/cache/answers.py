"""The answers artifact: prompts answered by the target (or taken from the data), unit by unit, resumable."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from data_specs.answers import SCHEMA_VERSION, AnswerRow, read_answers, read_counts, write_answers
from data_specs.manifest import fingerprint
from pipeline.config import Config, ConfigError, section
from pipeline.console import Bar, duration, progress, say, size, table
from pipeline.prompts.chat import given_rows, render_prompt
from pipeline.prompts.rows import Message, Rejection
from pipeline.prompts.template import TemplateRefusal
from pipeline.ranks import is_main, world_size
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.work import WorkShare, begin_once, commit_once
from pipeline.target.architecture import empty_model
from pipeline.target.files import device_of, eos_ids, identity, load_tokenizer, read_config
from pipeline.target.location import locate
from pipeline.target.model import Target
from stages.cache.forecast import cache_bytes, expected_seconds, free_bytes, spec_of
from stages.cache.prompts import TrainingPrompt, TrainingPrompts, count_table, load_prompts
from stages.cache.source import (
    AnswerReply,
    AnswerRequest,
    AnswerSource,
    Refusal,
    Settings,
    effective_settings,
    left_out,
)

CUT_WARNING = 0.1  # share of answers cut at max_new_tokens above which the user is warned (pitfall 12)
PLAN_SAMPLE = 500  # prompts whose tokens are counted for a plan
SERVER_SAID = "the server refused a prompt: "
TOKEN_BYTES = 10  # id and text of a token in a compressed Parquet file, about
# What a plan's time is reckoned from. A decoding step reads all weights once, then computes row by row.
STEP_SECONDS = 0.02
BYTES_A_SECOND, FLOPS = {"cpu": 4e9, "cuda": 1e12}, {"cpu": 1e11, "cuda": 1e14}
STREAM_TOKENS_A_SECOND = 30.0  # of one request to a server


@dataclass(frozen=True)
class AnswersJob:
    """All that is known before the first token: what to answer, as whom, with which settings."""

    config: Config
    folder: Path
    tokenizer: Any
    prompts: TrainingPrompts
    asked: list[TrainingPrompt]  # the prompts whose answers the cache will hold: never a benchmark's
    settings: Settings | None  # None: given answers
    fingerprint: str

    @property
    def units(self) -> dict[str, list[TrainingPrompt]]:
        """Unit name -> its prompts; from the list of prompts alone, so the same in every process."""
        step = self.config.answers.chunk_prompts
        return {f"{i // step:05d}": self.asked[i : i + step] for i in range(0, len(self.asked), step)}


# --- the stage ----------------------------------------------------------------------------------------------


def run_answers(config: Config, store: Store) -> Artifact | None:
    """Make (or find) the answers artifact that ``config`` describes; None when only a plan was asked for."""
    job = prepare(config)
    found = store.find("answers", job.fingerprint)
    if found is not None:
        return _already(found)
    if is_main():
        table("Prompts", ("", "rows"), count_table(job.prompts))
    forecast = forecast_cache(job)
    if config.plan:
        show_plan(job, forecast, store.root)
    check_room(job, forecast, store.root)
    if config.plan:
        return None
    name = f"{config.target.name}_{config.data.name}"
    work = begin_once(store, "answers", name, SCHEMA_VERSION, job.fingerprint, {}, _record(config))
    if isinstance(work, Artifact):
        return _already(work)
    answer_units(job, work)
    artifact = commit_once(store, work, lambda: finish(job, work.path), ("*.parquet",))
    if is_main():
        report(artifact)
    return artifact


def _already(found: Artifact) -> Artifact:
    if is_main():
        say(f"answers are already there: {found.reference} ({found.path})")
    return found


def prepare(config: Config) -> AnswersJob:
    """Check the config, read the prompts and identify the target; raises ``ConfigError`` naming the key."""
    given = config.answers.source == "given"
    folder = locate(config.target)
    empty_model(folder, config.target)  # a model that cannot be a target is refused before any answer
    tokenizer = load_tokenizer(folder, config.target)
    if not tokenizer.chat_template:
        raise ConfigError(f"target.path={folder}: its tokenizer has no chat template")
    prompts = load_prompts(config.data, given)
    asked = prompts.of("train", "heldout")
    if not asked:
        raise ConfigError(f"data: no prompt to answer; read {prompts.read}, rejected {prompts.rejected}")
    settings = None if given else _settings(config, folder)
    return AnswersJob(
        config, folder, tokenizer, prompts, asked, settings, _fingerprint(config, folder, prompts, settings)
    )


def answer_units(job: AnswersJob, work: Work) -> None:
    """Answer every unit that nobody has answered yet, sharing them with the other ranks."""
    units = job.units
    share = WorkShare(work.path, list(units), lambda unit: _path(work.path, unit).is_file())
    left = sum(len(units[unit]) for unit in share.remaining)
    if is_main() and left < len(job.asked):
        say(f"answers: {len(job.asked) - left} of {len(job.asked)} prompts are answered already")
    with progress("answers", round(left / world_size()), enabled=is_main()) as bar:  # this rank's part
        answer = _Answerer(job, bar)
        for unit in share:
            rows, counts = answer(unit)
            if not share.is_lost:
                write_answers(_path(work.path, unit), rows, counts)


def finish(job: AnswersJob, folder: Path) -> dict[str, Any]:
    """The counts of the manifest, from the files alone; leftovers of killed writers are removed."""
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    counts = read_counts(folder)
    rows = read_answers(folder, ["prompt_ids", "answer_ids", "finish_reason", "split"])
    said = [name for name in counts if name.startswith(SERVER_SAID)]
    if rows.num_rows == 0:
        if said:  # its settings may be changed: the next run asks again
            for path in folder.glob("*.parquet"):
                path.unlink()
        raise ConfigError(f"data: none of {len(job.asked)} prompts got an answer: {counts}")
    for name in said[1:]:  # one is enough to say why; how many there were is counted under its reason
        del counts[name]
    late = {name.removeprefix("rejected/"): n for name, n in counts.items() if name.startswith("rejected/")}
    rejected = dict(sorted((Counter(job.prompts.rejected) + Counter(late)).items()))
    return {
        "read": job.prompts.read,
        "accepted": job.prompts.accepted - sum(late.values()),
        "rejected": rejected,
        "benchmark_prompts": len(job.prompts.of("benchmark")),
        "rows": rows.num_rows,
        "rows_by_split": _value_counts(rows["split"]),
        "prompt_tokens": int(pc.sum(pc.list_value_length(rows["prompt_ids"])).as_py()),
        "answer_tokens": int(pc.sum(pc.list_value_length(rows["answer_ids"])).as_py()),
        "finish_reasons": _value_counts(rows["finish_reason"]),
        "notes": {name: n for name, n in counts.items() if not name.startswith("rejected/")},
        "sampling": _sampling(job),
        "thinking": job.config.target.thinking,
    }


def report(artifact: Artifact) -> None:
    """Print what was made and what a user should know about it."""
    counts = artifact.manifest.counts
    rejected = sum(counts["rejected"].values())
    say(f"answers {artifact.reference} ({artifact.path})")
    say(f"{counts['rows']} answers, {counts['answer_tokens']:,} tokens")
    say(f"rows: read {counts['read']} = accepted {counts['accepted']} + rejected {rejected}")
    for why, n in counts["rejected"].items():
        say(f"  rejected, {why}: {n}")
    cut = counts["finish_reasons"].get("length", 0) / counts["rows"]
    reasons = ", ".join(f"{why} {n}" for why, n in counts["finish_reasons"].items())
    say(f"finish reasons: {reasons} ({cut:.0%} cut at max_new_tokens)")
    if cut > CUT_WARNING:
        say(f"[yellow]warning:[/] {cut:.0%} of the answers are cut: raise answers.max_new_tokens")
    for note, n in counts["notes"].items():
        say(f"[yellow]note:[/] {note}: {n}")


# --- one unit -----------------------------------------------------------------------------------------------


@dataclass
class _Talk:
    """A conversation on its way: the user's turns, and what has been said so far."""

    prompt: TrainingPrompt
    questions: list[Message]
    history: list[Message]
    rows: list[AnswerRow] = field(default_factory=list)
    over: bool = False


def answer_unit(
    job: AnswersJob, engine: AnswerSource, unit: str, advance: Callable[[int, int], None]
) -> tuple[list[AnswerRow], Counter[str]]:
    """Rows and counts of one unit: all first turns together, then all second ones with the target's answers.

    ``advance`` is called with (prompts, tokens) that are done. The same whenever the unit is made
    anew: it depends on what the fingerprint covers (prompts, seed, settings; where the target samples also
    the batch size, as the draws of a batch come from one generator).
    """
    talks = [_talk(prompt) for prompt in job.units[unit]]
    counts: Counter[str] = Counter()
    for turn in range(max(len(talk.questions) for talk in talks)):
        done = functools.partial(advance, int(turn == 0))  # later turns are of prompts that have been counted
        pending = _pending(job, engine, talks, turn, counts, done)
        if not pending:
            break
        replies = engine.answer([request for _, request in pending], _seed(job, unit, turn), done)
        for (talk, request), reply in zip(pending, replies, strict=True):
            if isinstance(reply, Rejection):
                _end(talk, reply, counts)
            else:
                _record_reply(job, talk, turn, request, reply, counts)
    return [row for talk in talks for row in talk.rows], counts


def _pending(
    job: AnswersJob,
    engine: AnswerSource,
    talks: list[_Talk],
    turn: int,
    counts: Counter[str],
    done: Callable[[int], None],
) -> list[tuple[_Talk, AnswerRequest]]:
    """The conversations that have a turn number ``turn``, with the request for it; the others end here."""
    pending: list[tuple[_Talk, AnswerRequest]] = []
    for talk in (talk for talk in talks if not talk.over and turn < len(talk.questions)):
        talk.history.append(talk.questions[turn])
        request = _request(job, engine, talk.history)
        if isinstance(request, Rejection):
            _end(talk, request, counts)
            done(0)
        else:
            pending.append((talk, request))
    return pending


def given_unit(
    job: AnswersJob, unit: str, advance: Callable[[int, int], None]
) -> tuple[list[AnswerRow], Counter[str]]:
    """Rows and counts of one unit of answers that the data hold."""
    rows: list[AnswerRow] = []
    counts: Counter[str] = Counter()
    thinking = job.config.target.thinking
    for prompt in job.units[unit]:
        given = given_rows(job.tokenizer, prompt.messages, thinking)
        advance(1, 0)
        if isinstance(given, Rejection):
            counts[f"rejected/{given.reason}"] += 1
            continue
        for turn in given:
            rows.append(
                _row(job, prompt, turn.turn, turn.prompt_ids, turn.answer_ids, "given", turn.messages)
            )
    return rows, counts


def _talk(prompt: TrainingPrompt) -> _Talk:
    system = [message for message in prompt.messages[:1] if message["role"] == "system"]
    return _Talk(prompt, [message for message in prompt.messages if message["role"] == "user"], system)


def _request(job: AnswersJob, engine: AnswerSource, history: list[Message]) -> AnswerRequest | Rejection:
    assert job.settings is not None, "given answers ask nobody"
    try:
        ids = render_prompt(job.tokenizer, history, job.config.target.thinking)
    except TemplateRefusal:
        return Rejection("refused_by_template")
    room = job.settings.max_new_tokens if engine.context is None else engine.context - len(ids)
    if room < 1:
        return Rejection("prompt_too_long")
    return AnswerRequest(list(history), ids, min(room, job.settings.max_new_tokens))


def _end(talk: _Talk, rejection: Rejection, counts: Counter[str]) -> None:
    """A conversation without any answer is rejected; one with some keeps them."""
    talk.over = True
    counts[f"{'later_turn' if talk.rows else 'rejected'}/{rejection.reason}"] += 1
    if isinstance(rejection, Refusal):
        counts[f"{SERVER_SAID}{rejection.detail}"] += 1


def _record_reply(
    job: AnswersJob, talk: _Talk, turn: int, request: AnswerRequest, reply: AnswerReply, counts: Counter[str]
) -> None:
    talk.history.append(reply.message)
    talk.rows.append(
        _row(job, talk.prompt, turn, reply.prompt_ids, reply.answer_ids, reply.finish_reason, talk.history)
    )
    counts["retokenized"] += reply.retokenized
    counts["prompt_ids_differ_from_template"] += (
        reply.prompt_ids != request.prompt_ids and not reply.retokenized
    )
    for name in [name for name, n in counts.items() if n == 0]:
        del counts[name]


def _row(
    job: AnswersJob,
    prompt: TrainingPrompt,
    turn: int,
    prompt_ids: list[int],
    answer_ids: list[int],
    reason: str,
    said: list[Message],
) -> AnswerRow:
    text = json.dumps(said, ensure_ascii=False)
    sampling = json.dumps(_sampling(job), sort_keys=True)
    thinking = job.config.target.thinking
    return AnswerRow(
        prompt.key,
        prompt.split,
        prompt.category,
        turn,
        prompt_ids,
        answer_ids,
        reason,
        text,
        thinking,
        sampling,
    )


# --- the plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """Tokens and bytes of the cache of the answers: at most, and at least (the first prompts alone)."""

    most_tokens: float
    most_bytes: float
    least_bytes: float


def forecast_cache(job: AnswersJob, prompts: int = PLAN_SAMPLE) -> Forecast:
    """Bounds of the cache, from at most ``prompts`` of the prompts, spread over all."""
    capture, spec = job.config.capture, spec_of(job.config, read_config(job.folder, job.config.target))
    sample = _spread(job.asked, prompts)
    scale = len(job.asked) / len(sample)
    lengths = [_sample_lengths(job, prompt) for prompt in sample]
    least = [length for low, _ in lengths for length in low]
    most = [length for _, high in lengths for length in high]
    # Of a sample padding and rounding count once, so that the lower bound is scaled from the tokens alone.
    width = cache_bytes([spec.chunk_tokens], spec, capture.segment_tokens) / spec.chunk_tokens
    return Forecast(
        scale * sum(most),
        scale * cache_bytes(most, spec, capture.segment_tokens) if most else 0.0,
        scale * sum(least) * width,
    )


def check_room(job: AnswersJob, forecast: Forecast, root: Path) -> None:
    """Refuse, before anything is answered, a cache that cannot fit the disk; warn of one that may not.

    Raises ``ConfigError`` naming the bytes needed and free.
    """
    free = free_bytes(root)
    if forecast.least_bytes > free:  # by the sample: make sure
        forecast = forecast_cache(job, len(job.asked))
    if forecast.least_bytes > free:
        raise ConfigError(
            f"artifacts={root}: the target cache of the prompts alone needs at least "
            f"{size(forecast.least_bytes)} ({forecast.least_bytes:.0f} bytes), free are {size(free)} ({free})"
        )
    if forecast.most_bytes > free and is_main():
        say(
            f"[yellow]warning:[/] the target cache may take up to {size(forecast.most_bytes)}, free are "
            f"{size(free)}: fewer prompts, a smaller answers.max_new_tokens or fewer taps need less"
        )


def _spread(prompts: list[TrainingPrompt], count: int) -> list[TrainingPrompt]:
    """At most ``count`` of ``prompts``, evenly spread over the list (sources may differ in length)."""
    step = max(1.0, len(prompts) / count)
    return [prompts[int(i * step)] for i in range(min(count, len(prompts)))]


def _sample_lengths(job: AnswersJob, prompt: TrainingPrompt) -> tuple[list[int], list[int]]:
    """Tokens of the samples that ``prompt`` makes in the cache: (at least, at most), one number a turn."""
    longest = job.config.capture.max_length
    if job.settings is None:
        given = given_rows(job.tokenizer, prompt.messages, job.config.target.thinking)
        rows = [] if isinstance(given, Rejection) else given
        known = [
            min(longest, len(r.prompt_ids) + len(r.answer_ids)) for r in rows if len(r.prompt_ids) < longest
        ]
        return known, known
    talk, asked, most = _talk(prompt), 0, []
    for question in talk.questions:  # each counts its own template, so that the sum is no less than the whole
        asked += _tokens_of(job, [*talk.history, question]) + job.settings.max_new_tokens
        most.append(min(longest, asked))
    first = _first_prompt_tokens(job, prompt)
    return ([first + 1] if 0 < first < longest else []), most


def show_plan(job: AnswersJob, forecast: Forecast, root: Path) -> None:
    """Print what the run would make; the figures of tokens and time are estimates and say so."""
    table("Plan: answers (estimates, nothing is done)", ("", "expected"), list(plan_lines(job)))
    table("Plan: target cache of these answers", ("", "expected"), list(cache_lines(job, forecast, root)))


def cache_lines(job: AnswersJob, forecast: Forecast, root: Path) -> Iterator[tuple[str, str]]:
    """Lines of the plan: bounds of the cache that is captured from the answers."""
    seconds = expected_seconds(forecast.most_tokens, job.folder, job.config) / world_size()
    yield "target cache at most", f"{size(forecast.most_bytes)}, {forecast.most_tokens:,.0f} tokens"
    yield "target cache at least", f"{size(forecast.least_bytes)} (prompts alone)"
    yield "free disk", size(free_bytes(root))
    yield "capture time", f"{duration(seconds)}, at most"


def plan_lines(job: AnswersJob) -> Iterator[tuple[str, str]]:
    """Lines of the plan: turns, tokens, bytes on disk and time."""
    sample = job.asked[:PLAN_SAMPLE]
    scale = len(job.asked) / len(sample)
    yield "prompts", str(len(job.asked))
    if job.settings is None:
        yield from _given_lines(job, sample, scale)
        return
    turns = round(scale * sum(len(_talk(prompt).questions) for prompt in sample))
    prompt_tokens = turns * sum(_first_prompt_tokens(job, prompt) for prompt in sample) / len(sample)
    most = turns * job.settings.max_new_tokens  # nobody knows how long the answers will be
    yield "turns", str(turns)
    yield "prompt tokens", f"about {prompt_tokens:,.0f}"
    yield "answer tokens", f"at most {most:,}"
    yield "bytes", f"about {size(TOKEN_BYTES * (prompt_tokens + most))}, at most"
    yield "time", f"very roughly {duration(most / _tokens_a_second(job))}, at most"


def _given_lines(job: AnswersJob, sample: list[TrainingPrompt], scale: float) -> Iterator[tuple[str, str]]:
    """Lines of the plan for answers that the data hold: a sample is tokenized."""
    started = time.monotonic()
    given = [given_rows(job.tokenizer, prompt.messages, job.config.target.thinking) for prompt in sample]
    seconds = time.monotonic() - started
    rows = [row for talk in given if not isinstance(talk, Rejection) for row in talk]
    prompt_tokens = scale * sum(len(row.prompt_ids) for row in rows)
    answer_tokens = scale * sum(len(row.answer_ids) for row in rows)
    yield "turns", f"about {scale * len(rows):,.0f}"
    yield "prompt tokens", f"about {prompt_tokens:,.0f}"
    yield "answer tokens", f"about {answer_tokens:,.0f}"
    yield "bytes", f"about {size(TOKEN_BYTES * (prompt_tokens + answer_tokens))}"
    yield "time", f"about {duration(scale * seconds / world_size())}"


def _first_prompt_tokens(job: AnswersJob, prompt: TrainingPrompt) -> int:
    talk = _talk(prompt)
    return _tokens_of(job, talk.history + talk.questions[:1])


def _tokens_of(job: AnswersJob, messages: list[Message]) -> int:
    """Tokens of ``messages`` as a prompt; 0 where the template refuses them."""
    try:
        return len(render_prompt(job.tokenizer, messages, job.config.target.thinking))
    except TemplateRefusal:
        return 0


def _tokens_a_second(job: AnswersJob) -> float:
    """A guess from the weights' bytes, or from the number of streams of the servers."""
    answers = job.config.answers
    if answers.source == "openai":
        return STREAM_TOKENS_A_SECOND * answers.openai.concurrency
    weights = sum(path.stat().st_size for path in job.folder.glob("*.safetensors"))
    device, rows = device_of(job.config.target).type, min(answers.batch_size, answers.chunk_prompts)
    # A weight in bf16 is two bytes to read a step and two FLOP to compute a row.
    step = STEP_SECONDS + weights / BYTES_A_SECOND[device] + rows * weights / FLOPS[device]
    return rows / step * world_size()


# --- small parts --------------------------------------------------------------------------------------------


class _Answerer:
    """Answers units; loads the engine for the first one: a rank that finds nothing to do loads none."""

    def __init__(self, job: AnswersJob, bar: Bar) -> None:
        self.job, self.bar = job, bar
        self.tokens = 0

    def __call__(self, unit: str) -> tuple[list[AnswerRow], Counter[str]]:
        if self.job.settings is None:
            return given_unit(self.job, unit, self.advance)
        return answer_unit(self.job, self.engine, unit, self.advance)

    @functools.cached_property
    def engine(self) -> AnswerSource:
        """The target or its servers."""
        engine = _engine(self.job)
        self.started = time.monotonic()
        return engine

    def advance(self, prompts: int, tokens: int) -> None:
        """Move the bar; its note is the tokens a second of this process."""
        self.tokens += tokens
        rate = self.tokens / max(time.monotonic() - self.started, 1e-9) if self.tokens else 0.0
        self.bar.advance(prompts, note=f"{rate:.0f} tokens/s" if rate else "")


def _engine(job: AnswersJob) -> AnswerSource:
    """Load the target, or reach the servers."""
    assert job.settings is not None, "given answers need no engine"
    answers, target = job.config.answers, job.config.target
    if answers.source == "hf":
        from stages.cache.source_hf import HfEngine

        # One tap costs nothing; the states of the configured ones would be copied at every step.
        model = Target.load(target, taps=[0])
        model.check_head()
        return HfEngine(model, job.tokenizer, job.settings, answers.batch_size)
    from stages.cache.source_openai import OpenAIEngine

    rows = read_config(job.folder, target).vocab_size
    engine = OpenAIEngine(
        answers.openai, job.settings, job.tokenizer, target.thinking, eos_ids(job.folder), rows
    )
    if is_main():
        say(f"answers: {engine.model} at {', '.join(engine.urls)}")
    return engine


def _settings(config: Config, folder: Path) -> Settings:
    """The effective settings, checked against the engine."""
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text()) if path.is_file() else {}
    settings = effective_settings(config.answers, generation)
    if config.answers.source == "hf":
        from stages.cache.source_hf import check_settings

        check_settings(settings)
    else:
        from stages.cache.source_openai import check_config

        check_config(config.answers.openai)
    if is_main() and (ignored := left_out(generation)):
        say(f"[yellow]warning:[/] {path} sets {', '.join(ignored)}, which no engine here applies")
    return settings


def _sampling(job: AnswersJob) -> dict[str, Any]:
    """What rows and manifest record of how the answers were made."""
    if job.settings is None:
        return {"engine": "given"}
    return {"engine": job.config.answers.source, "seed": job.config.seed, **job.settings.active()}


def _fingerprint(config: Config, folder: Path, prompts: TrainingPrompts, settings: Settings | None) -> str:
    """Over all that changes an answer; what only changes how it is made (retries, workers) stays out.

    The batch size is in where the target samples: the draws of a batch come from one generator.
    """
    answers = config.answers
    parts: dict[str, Any] = {
        "engine": answers.source,
        "chunk_prompts": answers.chunk_prompts,
        "thinking": config.target.thinking,
    }
    if settings is not None:
        parts |= {"settings": settings.active(), "seed": config.seed}
        if answers.source == "hf" and settings.temperature > 0:
            parts |= {"batch_size": answers.batch_size}
        parts |= {"dtype": config.target.dtype} if answers.source == "hf" else {"model": answers.openai.model}
    return fingerprint("answers", SCHEMA_VERSION, parts, identity(folder), prompts.fingerprint())


def _record(config: Config) -> dict[str, Any]:
    names = ("target", "data", "answers")
    return {name: section(getattr(config, name)) for name in names} | {"seed": config.seed}


def _seed(job: AnswersJob, unit: str, turn: int) -> int:
    """A seed below 2**31 of (seed, unit, turn)."""
    digest = hashlib.sha256(f"{job.config.seed}/{unit}/{turn}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _path(folder: Path, unit: str) -> Path:
    return folder / f"{unit}.parquet"


def _value_counts(column: Any) -> dict[str, int]:
    return dict(sorted((item["values"], item["counts"]) for item in column.value_counts().to_pylist()))
