"""Tokens a second of answers in process: the batched engine against padded batches, in one run.

python benchmarks/answers.py [--target smollm2] [--dtype float32] [--prompts 48 128] [--slots 16] [--pairs 3]

Equal lengths: every answer is cut at 64 tokens. Different lengths: at most 384 tokens, and each answer ends where it
ends. Both ways take turns in pairs, because a shared machine's speed drifts; the ratio is the median of the pairs'. All
greedy answers have to be equal.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
from hydra import compose, initialize_config_dir

from pipeline import config as schema
from pipeline import console
from pipeline.prompts.benchmarks import load_benchmark, load_prompts
from pipeline.prompts.chat import render_prompt
from pipeline.target.files import load_tokenizer
from pipeline.target.model import Target
from stages.cache.padded import answer_padded
from stages.cache.source import AnswerReply, AnswerRequest, Settings
from stages.cache.source_hf import HfSource

CONF = str(Path(__file__).resolve().parent.parent / "conf")
NAMES = ("quickstart_math", "quickstart_code", "quickstart_chat", "quickstart_heldout")


@dataclass(frozen=True)
class Way:
    """Answers one way: their ids and how many tokens a second were made."""

    answers: list[list[int]]
    speed: float


def by_engine(engine: HfSource, requests: list[AnswerRequest]) -> Way:
    began = time.perf_counter()
    replies = engine.answer(requests, 0, lambda tokens: None)
    answers = [reply.answer_ids for reply in replies if isinstance(reply, AnswerReply)]
    return Way(answers, sum(map(len, answers)) / (time.perf_counter() - began))


def by_padding(engine: HfSource, requests: list[AnswerRequest]) -> Way:
    prompts, limits = [r.prompt_ids for r in requests], [r.limit for r in requests]
    began, generator = time.perf_counter(), torch.Generator()
    answers = answer_padded(
        engine.target, prompts, limits, engine.settings, engine.batch_size, generator, lambda tokens: None
    )
    return Way(answers, sum(map(len, answers)) / (time.perf_counter() - began))


def compare(engine: HfSource, requests: list[AnswerRequest], pairs: int) -> tuple[str, ...]:
    """A row of the table: speeds, ratio, how many answers are equal."""
    runs = [(by_padding(engine, requests), by_engine(engine, requests)) for _ in range(pairs)]
    padded, batched = runs[-1]
    equal = sum(a == b for a, b in zip(padded.answers, batched.answers, strict=True))
    lengths = [len(answer) for answer in batched.answers]
    return (
        f"{len(requests)}", f"{min(lengths)} - {max(lengths)}", f"{median(p.speed for p, _ in runs):.0f}",
        f"{median(b.speed for _, b in runs):.0f}", f"{median(b.speed / p.speed for p, b in runs):.2f}",
        f"{equal} of {len(lengths)}",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="smollm2", help="a name of conf/target, or a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, nargs="+", default=[48, 128])
    parser.add_argument(
        "--slots", type=int, help="answered at a time (answers.batch_size); all of them if not given"
    )
    parser.add_argument("--limits", type=int, nargs="+", default=[64, 384], help="new tokens at most")
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    config = replace(_target(args.target), dtype=args.dtype)
    target = Target.load(config, taps=[0])
    tokenizer = load_tokenizer(target.folder, config)
    prompts = [prompt for name in NAMES for prompt in load_prompts(load_benchmark(name))]
    rows = []
    for limit in args.limits:
        for count in args.prompts:
            engine = HfSource(target, tokenizer, Settings(limit, 0.0), args.slots or count)
            ids = [render_prompt(tokenizer, prompt.messages[:1], None) for prompt in prompts[:count]]
            requests = [AnswerRequest([], one, limit) for one in ids]
            engine.answer(requests[:2], 0, lambda tokens: None)  # warms up
            rows.append((f"at most {limit}", *compare(engine, requests, args.pairs)))
    columns = (
        "new tokens",
        "prompts",
        "lengths",
        "padded, tokens/s",
        "engine, tokens/s",
        "ratio",
        "equal answers",
    )
    console.table(f"{args.target}, {args.dtype}, greedy", columns, rows)


def _target(name: str) -> schema.TargetConfig:
    if Path(name).is_dir():
        return schema.TargetConfig(name="target", path=name, device="cpu")
    schema.register()
    with initialize_config_dir(CONF, version_base=None):
        return schema.resolve(compose("config", [f"target={name}"])).target


if __name__ == "__main__":
    main()
