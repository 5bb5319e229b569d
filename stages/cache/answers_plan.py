"""Estimates the tokens, bytes and time of a run of stage=cache before it answers anything."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data_specs.files import free_bytes
from pipeline.config import ConfigError
from pipeline.console import duration, say, size, table
from pipeline.prompts.rows import Message, Rejection
from pipeline.prompts.template import TemplateRefusal
from pipeline.prompts.training import TrainingPrompt
from pipeline.ranks import is_main, world_size
from pipeline.target.files import device_of, read_config
from stages.cache.answers_job import NO_EMBEDDING, AnswersJob, talk_of
from stages.cache.forecast import cache_bytes, expected_seconds, spec_of

PLAN_SAMPLE = 500  # a plan counts the tokens of at most this many prompts
TOKEN_BYTES = 10  # about the size of a token's id and text in a compressed Parquet file
# For the estimate of time: a decoding step reads all weights once and then computes each row.
BYTES_A_SECOND, FLOPS = {"cpu": 4e9, "cuda": 1e12}, {"cpu": 1e11, "cuda": 1e14}
STEP_SECONDS = 0.02
STREAM_TOKENS_A_SECOND = 30.0  # of one request to a server, guessed


@dataclass(frozen=True)
class Forecast:
    """Upper bounds of the cache's tokens and bytes; its lower bound counts only the first prompts."""

    most_tokens: float
    most_bytes: float
    least_bytes: float


def forecast_cache(job: AnswersJob, prompts: int = PLAN_SAMPLE) -> Forecast:
    """Bounds of the cache, estimated from at most ``prompts`` prompts that are spread over all of them."""
    capture, spec = job.config.capture, spec_of(job.config, read_config(job.folder, job.config.target))
    sample = _spread(job.asked, prompts)
    scale = len(job.asked) / len(sample)
    lengths = [_sample_lengths(job, prompt) for prompt in sample]
    least = [length for low, _ in lengths for length in low]
    most = [length for _, high in lengths for length in high]
    # Scaling bytes would multiply the padding of the last chunk, so the lower bound scales only the tokens.
    width = cache_bytes([spec.chunk_tokens], spec, capture.segment_tokens) / spec.chunk_tokens
    return Forecast(
        scale * sum(most),
        scale * cache_bytes(most, spec, capture.segment_tokens) if most else 0.0,
        scale * sum(least) * width,
    )


def check_room(job: AnswersJob, forecast: Forecast, root: Path) -> None:
    """Warn if the cache may not fit the disk.

    Raises ``ConfigError`` with the needed and the free bytes if it cannot fit, before anything is answered.
    """
    free = free_bytes(root)
    if forecast.least_bytes > free:  # only an estimate from a sample, so count all prompts
        forecast = forecast_cache(job, len(job.asked))
    if forecast.least_bytes > free:
        raise ConfigError(
            f"artifacts={root}: the target cache of the prompts alone needs at least "
            f"{size(forecast.least_bytes)} ({forecast.least_bytes:.0f} bytes), but only {size(free)} ({free}) are free"
        )
    if forecast.most_bytes > free and is_main():
        say(
            f"the target cache may take up to {size(forecast.most_bytes)}, but only "
            f"{size(free)} are free: fewer prompts, a smaller answers.max_new_tokens or fewer taps need less",
            "warning:",
        )


def _spread(prompts: list[TrainingPrompt], count: int) -> list[TrainingPrompt]:
    """At most ``count`` of ``prompts``, evenly spread over the list, because sources may differ in length."""
    step = max(1.0, len(prompts) / count)
    return [prompts[int(i * step)] for i in range(min(count, len(prompts)))]


def _sample_lengths(job: AnswersJob, prompt: TrainingPrompt) -> tuple[list[int], list[int]]:
    """Bounds (lower, upper) of the tokens of the samples that ``prompt`` adds to the cache, one number per turn."""
    longest = job.config.capture.max_length
    if job.settings is None:
        given = job.given(prompt)
        rows = [] if isinstance(given, Rejection) else given
        known = [
            min(longest, len(r.prompt_ids) + len(r.answer_ids)) for r in rows if len(r.prompt_ids) < longest
        ]
        return known, known
    talk, asked, most = talk_of(prompt), 0, []
    for question in talk.questions:  # each turn counts the template again, so the sum is an upper bound
        asked += _tokens_of(job, prompt, [*talk.history, question]) + job.settings.max_new_tokens
        most.append(min(longest, asked))
    first = _first_prompt_tokens(job, prompt)
    return ([first + 1] if 0 < first < longest else []), most


def rendered(job: AnswersJob, prompts: int = 100) -> tuple[list[list[int]], Counter[str]]:
    """Tokens [first prompt, longest sample] of at most ``prompts`` usable prompts, and reasons why others are not."""
    lengths: list[list[int]] = []
    reasons: Counter[str] = Counter()
    for prompt in _spread(job.asked, prompts):
        found = _rendered(job, prompt)
        if isinstance(found, Rejection):
            reasons[found.reason] += 1
        else:
            lengths.append(found)
    return lengths, reasons


def _rendered(job: AnswersJob, prompt: TrainingPrompt) -> list[int] | Rejection:
    """[tokens of the first prompt, upper bound of the longest sample's tokens], or why ``prompt`` is rejected."""
    longest = job.config.capture.max_length
    if job.settings is None:
        given = job.given(prompt)
        if isinstance(given, Rejection):
            return given
        ids = [[*row.prompt_ids, *row.answer_ids] for row in given]
        first, most = min(len(row.prompt_ids) for row in given), max(map(len, ids))
    else:
        talk = talk_of(prompt)
        try:
            ids = [job.render(prompt, talk.history + talk.questions[:1])]
        except TemplateRefusal as error:
            return Rejection(error.reason)
        first, most = len(ids[0]), len(ids[0]) + job.settings.max_new_tokens
    if not all(map(job.embeds, ids)):
        return Rejection(NO_EMBEDDING)
    if first >= longest:
        return Rejection(f"prompt_beyond_capture.max_length={longest}")
    return [first, min(longest, most)]


def show_plan(job: AnswersJob, forecast: Forecast, root: Path) -> None:
    """Print what the run would produce; tokens and time are marked as estimates."""
    table("Plan: answers (estimates, nothing runs)", ("", "expected"), list(plan_lines(job)))
    table("Plan: target cache of these answers", ("", "expected"), list(cache_lines(job, forecast, root)))


def cache_lines(job: AnswersJob, forecast: Forecast, root: Path) -> Iterator[tuple[str, str]]:
    """Lines of the plan with bounds of the cache that is captured from the answers."""
    seconds = expected_seconds(forecast.most_tokens, job.folder, job.config) / world_size()
    yield "target cache at most", f"{size(forecast.most_bytes)}, {forecast.most_tokens:,.0f} tokens"
    yield "target cache at least", f"{size(forecast.least_bytes)} (prompts alone)"
    yield "free disk", size(free_bytes(root))
    yield "capture time", f"at most {duration(seconds)}"


def plan_lines(job: AnswersJob) -> Iterator[tuple[str, str]]:
    """Lines of the plan with turns, tokens, bytes on disk and time."""
    sample = job.asked[:PLAN_SAMPLE]
    scale = len(job.asked) / len(sample)
    yield "prompts", str(len(job.asked))
    if job.settings is None:
        yield from _given_lines(job, sample, scale)
        return
    turns = round(scale * sum(len(talk_of(prompt).questions) for prompt in sample))
    prompt_tokens = turns * sum(_first_prompt_tokens(job, prompt) for prompt in sample) / len(sample)
    most = turns * job.settings.max_new_tokens  # an upper bound, as the answers' lengths are unknown
    yield "turns", str(turns)
    yield "prompt tokens", f"about {prompt_tokens:,.0f}"
    yield "answer tokens", f"at most {most:,}"
    yield "bytes", f"at most about {size(TOKEN_BYTES * (prompt_tokens + most))}"
    yield "time", f"at most {duration(most / _tokens_a_second(job))}, very roughly"


def _given_lines(job: AnswersJob, sample: list[TrainingPrompt], scale: float) -> Iterator[tuple[str, str]]:
    """Lines of the plan for answers that the data contain, from tokenizing ``sample``."""
    started = time.monotonic()
    given = [job.given(prompt) for prompt in sample]
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
    talk = talk_of(prompt)
    return _tokens_of(job, prompt, talk.history + talk.questions[:1])


def _tokens_of(job: AnswersJob, prompt: TrainingPrompt, messages: list[Message]) -> int:
    """Tokens of ``messages`` as a prompt; 0 if the template refuses them."""
    try:
        return len(job.render(prompt, messages))
    except TemplateRefusal:
        return 0


def _tokens_a_second(job: AnswersJob) -> float:
    """Guess the tokens per second from the weights' bytes, or from the number of concurrent requests."""
    answers = job.config.answers
    if answers.source == "openai":
        return STREAM_TOKENS_A_SECOND * answers.openai.concurrency
    weights = sum(path.stat().st_size for path in job.folder.glob("*.safetensors"))
    device, rows = device_of(job.config.target).type, min(answers.batch_size, answers.chunk_prompts)
    # For each bf16 weight, a step reads two bytes, and each row computes two FLOP.
    step = STEP_SECONDS + weights / BYTES_A_SECOND[device] + rows * weights / FLOPS[device]
    return rows / step * world_size()
