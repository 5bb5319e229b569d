"""Makes the answers artifact unit by unit, resumably: the target answers the prompts, or the data contain answers."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from data_specs.answers import SCHEMA_VERSION, AnswerRow, read_answers, read_counts, write_answers
from pipeline.config import Config, ConfigError
from pipeline.console import Bar, progress, say, table
from pipeline.prompts.rows import Message, Rejection
from pipeline.prompts.template import TemplateRefusal
from pipeline.prompts.training import TrainingPrompt, count_table
from pipeline.ranks import is_main, world_size
from pipeline.store.artifacts import Artifact, Store, Work
from pipeline.store.work import WorkShare, begin_once, commit_once
from pipeline.target.files import end_ids, read_config
from pipeline.target.model import Target
from stages.cache.answers_job import (
    NO_EMBEDDING,
    AnswersJob,
    Talk,
    prepare,
    recorded,
    sampling_of,
    seed_of,
    talk_of,
    unit_path,
)
from stages.cache.answers_plan import check_room, forecast_cache, show_plan
from stages.cache.source import AnswerReply, AnswerRequest, AnswerSource, Refusal

CUT_WARNING = 0.1  # warn if a larger share of the answers is cut at max_new_tokens (pitfall 12)
SERVER_SAID = "the server refused a prompt: "


def run_answers(config: Config, store: Store) -> Artifact | None:
    """Make or reuse the answers artifact that ``config`` describes; return None if only a plan is asked for."""
    job = prepare(config)
    if (found := store.find("answers", job.fingerprint)) is not None:
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
    work = begin_once(store, "answers", name, SCHEMA_VERSION, job.fingerprint, {}, recorded(job))
    if isinstance(work, Artifact):
        return _already(work)
    answer_units(job, work)
    artifact = commit_once(store, work, lambda: finish(job, work.path), ("*.parquet",))
    if is_main():
        report(artifact)
    return artifact


def _already(found: Artifact) -> Artifact:
    if is_main():
        say(f"Reusing the answers {found.reference} ({found.path})")
    return found


def answer_units(job: AnswersJob, work: Work) -> None:
    """Answer all units that are not answered yet, sharing them with the other ranks."""
    units = job.units
    share = WorkShare(work.path, list(units), lambda unit: unit_path(work.path, unit).is_file())
    left = sum(len(units[unit]) for unit in share.remaining)
    if is_main() and left < len(job.asked):
        say(f"answers: {len(job.asked) - left} of {len(job.asked)} prompts already have answers")
    with progress("answers", round(left / world_size()), enabled=is_main()) as bar:  # this rank's part
        answer = _Answerer(job, bar)
        for unit in share:
            rows, counts = answer(unit)
            if not share.is_lost:
                write_answers(unit_path(work.path, unit), rows, counts)


def finish(job: AnswersJob, folder: Path) -> dict[str, Any]:
    """Remove leftovers of killed writers, then read the counts of the manifest from the files.

    Raises ``ConfigError`` if no prompt got an answer.
    """
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    counts = read_counts(folder)
    rows = read_answers(folder, ["prompt_ids", "answer_ids", "finish_reason", "split"])
    said = [name for name in counts if name.startswith(SERVER_SAID)]
    if rows.num_rows == 0:
        if said:  # the user may change the server's settings, so the next run asks again
            for path in folder.glob("*.parquet"):
                path.unlink()
        raise ConfigError(f"data: none of {len(job.asked)} prompts got an answer: {counts}")
    for name in said[1:]:  # one text is enough, as all are counted under their reason
        del counts[name]
    late = {name.removeprefix("rejected/"): n for name, n in counts.items() if name.startswith("rejected/")}
    rejected = dict(sorted((Counter(job.prompts.rejected) + Counter(late)).items()))
    return {
        "read": job.prompts.read,
        "accepted": job.prompts.accepted - sum(late.values()),
        "rejected": rejected,
        "control_tokens": job.prompts.control_tokens,
        "benchmark_prompts": len(job.prompts.of("benchmark")),
        "rows": rows.num_rows,
        "rows_by_split": _value_counts(rows["split"]),
        "prompt_tokens": int(pc.sum(pc.list_value_length(rows["prompt_ids"])).as_py()),
        "answer_tokens": int(pc.sum(pc.list_value_length(rows["answer_ids"])).as_py()),
        "finish_reasons": _value_counts(rows["finish_reason"]),
        "notes": {name: n for name, n in counts.items() if not name.startswith("rejected/")},
        "sampling": sampling_of(job),
        "thinking": job.config.target.thinking,
        "template_kwargs": job.config.target.template_kwargs,
    }


def report(artifact: Artifact) -> None:
    """Print the counts of the answers, with warnings and notes."""
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
        say(f"{cut:.0%} of the answers are cut: raise answers.max_new_tokens", "warning:")
    for token, n in counts["control_tokens"].items():
        say(f"{n} rows have {token} in a user's text: data.control_tokens=reject drops them", "note:")
    for note, n in counts["notes"].items():
        say(f"{note}: {n}", "note:")


def answer_unit(
    job: AnswersJob, engine: AnswerSource, unit: str, advance: Callable[[int, int], None]
) -> tuple[list[AnswerRow], Counter[str]]:
    """Rows and counts of one unit: all first turns are answered together, then all second turns, and so on.

    Calls ``advance`` with the numbers of finished (prompts, tokens). A repeated unit gets the same rows, because they
    depend only on what the fingerprint covers.
    """
    talks = [talk_of(prompt) for prompt in job.units[unit]]
    counts: Counter[str] = Counter()
    for turn in range(max(len(talk.questions) for talk in talks)):
        done = functools.partial(advance, int(turn == 0))  # the first turn has counted the prompt
        pending = _pending(job, engine, talks, turn, counts, done)
        if not pending:
            break
        replies = engine.answer([request for _, request in pending], seed_of(job, unit, turn), done)
        for (talk, request), reply in zip(pending, replies, strict=True):
            if isinstance(reply, Rejection):
                _end(talk, reply, counts)
            else:
                _record_reply(job, talk, turn, request, reply, counts)
    return [row for talk in talks for row in talk.rows], counts


def _pending(
    job: AnswersJob,
    engine: AnswerSource,
    talks: list[Talk],
    turn: int,
    counts: Counter[str],
    done: Callable[[int], None],
) -> list[tuple[Talk, AnswerRequest]]:
    """The conversations that continue with turn ``turn``, with their requests; ends those that cannot continue."""
    pending: list[tuple[Talk, AnswerRequest]] = []
    for talk in (talk for talk in talks if not talk.over and turn < len(talk.questions)):
        talk.history.append(talk.questions[turn])
        request = _request(job, engine, talk)
        if isinstance(request, Rejection):
            _end(talk, request, counts)
            done(0)
        else:
            pending.append((talk, request))
    return pending


def given_unit(
    job: AnswersJob, unit: str, advance: Callable[[int, int], None]
) -> tuple[list[AnswerRow], Counter[str]]:
    """Rows and counts of one unit whose answers the data contain."""
    rows: list[AnswerRow] = []
    counts: Counter[str] = Counter()
    for prompt in job.units[unit]:
        given = job.given(prompt)
        advance(1, 0)
        if isinstance(given, Rejection):
            counts[f"rejected/{given.reason}"] += 1
        elif not all(job.embeds([*turn.prompt_ids, *turn.answer_ids]) for turn in given):
            counts[f"rejected/{NO_EMBEDDING}"] += 1
        else:
            rows += [
                _row(job, prompt, turn.turn, turn.prompt_ids, turn.answer_ids, "given", turn.messages)
                for turn in given
            ]
    return rows, counts


def _request(job: AnswersJob, engine: AnswerSource, talk: Talk) -> AnswerRequest | Rejection:
    assert job.settings is not None, "given answers need no request"
    try:
        ids = job.render(talk.prompt, talk.history)
    except TemplateRefusal as error:
        return Rejection(error.reason)
    if not job.embeds(ids):
        return Rejection(NO_EMBEDDING)
    room = job.settings.max_new_tokens if engine.context is None else engine.context - len(ids)
    if room < 1:
        return Rejection("prompt_too_long")
    return AnswerRequest(list(talk.history), ids, min(room, job.settings.max_new_tokens), talk.prompt.tools)


def _end(talk: Talk, rejection: Rejection, counts: Counter[str]) -> None:
    """End a conversation: its answers are kept, and it counts as rejected if it has none."""
    talk.over = True
    counts[f"{'later_turn' if talk.rows else 'rejected'}/{rejection.reason}"] += 1
    if isinstance(rejection, Refusal):
        counts[f"{SERVER_SAID}{rejection.detail}"] += 1


def _record_reply(
    job: AnswersJob, talk: Talk, turn: int, request: AnswerRequest, reply: AnswerReply, counts: Counter[str]
) -> None:
    talk.history.append(reply.message)
    talk.rows.append(
        _row(job, talk.prompt, turn, reply.prompt_ids, reply.answer_ids, reply.finish_reason, talk.history)
    )
    if turn + 1 < len(talk.questions):
        if reply.is_cut_in_reasoning:
            _end(talk, Rejection("cut_in_reasoning"), counts)
        elif reply.message.get("tool_calls"):  # The next question needs the tool's result, which is missing.
            _end(talk, Rejection("tool_call_without_result"), counts)
    if reply.retokenized:
        counts["retokenized"] += 1
    elif reply.prompt_ids != request.prompt_ids:
        counts["prompt_ids_differ_from_template"] += 1


def _row(
    job: AnswersJob,
    prompt: TrainingPrompt,
    turn: int,
    prompt_ids: list[int],
    answer_ids: list[int],
    reason: str,
    said: list[Message],
) -> AnswerRow:
    text, thinking = json.dumps(said, ensure_ascii=False), job.config.target.thinking
    tools = json.dumps(prompt.tools, ensure_ascii=False) if prompt.tools else None
    sampling = json.dumps(sampling_of(job), sort_keys=True)
    key, split, category = prompt.key, prompt.split, prompt.category
    return AnswerRow(
        key, split, category, turn, prompt_ids, answer_ids, reason, text, thinking, sampling, tools
    )


class _Answerer:
    """Answers units. It loads the engine with the first unit, so a rank without work loads none."""

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
        """Move the bar and show the tokens per second of this process."""
        self.tokens += tokens
        rate = self.tokens / max(time.monotonic() - self.started, 1e-9) if self.tokens else 0.0
        self.bar.advance(prompts, note=f"{rate:.0f} tokens/s" if rate else "")


def _engine(job: AnswersJob) -> AnswerSource:
    """Load the target or connect to the servers."""
    assert job.settings is not None, "given answers need no engine"
    answers, target = job.config.answers, job.config.target
    if answers.source == "hf":
        from stages.cache.source_hf import HfSource

        # Every step copies the states of all taps, and answers need none of them, so one tap is enough.
        model = Target.load(target, taps=[0])
        model.check_head()
        return HfSource(model, job.tokenizer, job.settings, answers.batch_size)
    from stages.cache.source_openai import OpenAISource

    rows = read_config(job.folder, target).vocab_size
    engine = OpenAISource(
        answers.openai, job.settings, job.tokenizer, target.thinking, end_ids(job.folder, job.tokenizer), rows
    )
    if is_main():
        say(f"answers: {engine.model} at {', '.join(engine.urls)}")
    return engine


def _value_counts(column: Any) -> dict[str, int]:
    return dict(sorted((item["values"], item["counts"]) for item in column.value_counts().to_pylist()))
