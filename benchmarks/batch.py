"""Compares the batched engine with one prompt at a time, in tokens per second: same prompts, same draft, same run.

python benchmarks/batch.py --draft artifacts/draft/smollm2_dspark/v0 [--target smollm2] [--batch 16]

Both ways use the code of stage evaluate (``evaluate.batch``), greedy, with the draft. They run in turns, in pairs,
because the speed of a shared machine drifts. The figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from hydra import compose, initialize_config_dir

from pipeline import config as schema
from pipeline import console
from pipeline.decoding import dialogues
from pipeline.decoding.dialogue import Speaker
from pipeline.decoding.sampling import Sampler
from pipeline.drafts.folders.checkpoint import load
from pipeline.prompts.benchmarks import Prompt, load_benchmark, load_prompts
from pipeline.target.files import load_tokenizer
from pipeline.target.model import Target
from pipeline.target.tensors import load_tensors

CONF = str(Path(__file__).resolve().parent.parent / "conf")
NAMES = ("quickstart_math", "quickstart_code", "quickstart_chat")


def speaker(target: schema.TargetConfig, folder: Path, tokens: int) -> Speaker:
    tensors = load_tensors(target)
    draft = load(folder, tensors)
    loaded = Target.load(target, list(draft.config.target_layer_ids) or None)
    draft = draft.to(device=loaded.device, dtype=loaded.dtype)
    return Speaker(
        loaded,
        draft,
        load_tokenizer(loaded.folder, target),
        Sampler(),
        tokens,
        0.0,
        False,
        target.thinking,
        0,
    )


def tokens_a_second(one: Speaker, prompts: list[Prompt]) -> float:
    began = time.perf_counter()
    if one.batch == 1:
        rows = [row for prompt in prompts for row in one.answer(prompt)]
    else:
        rows = dialogues.answer_together(one, prompts, lambda prompt: None)
    return sum(row["emitted"] for row in rows) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--target", default="smollm2", help="a name in conf/target, or a folder")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens for each prompt")
    parser.add_argument(
        "--prompts", type=int, default=64, help="prompts in batches; one at a time, every eighth of them"
    )
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    one = speaker(_target(args.target), args.draft, args.tokens)
    prompts = [prompt for name in NAMES for prompt in load_prompts(load_benchmark(name))][: args.prompts]
    alone = prompts[::8]
    together = replace(one, batch=args.batch)
    one.answer(prompts[0])
    dialogues.warm_up(together, prompts)
    pairs = [(tokens_a_second(one, alone), tokens_a_second(together, prompts)) for _ in range(args.pairs)]
    rows = [(f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}") for a, b in pairs]
    columns = ("one at a time, tokens/s", f"{args.batch} at a time, tokens/s", "ratio")
    console.table(f"{args.target}, {one.target.dtype}, {args.tokens} new tokens", columns, rows)
    console.say(f"batched / one at a time: {median(b / a for a, b in pairs):.2f}")


def _target(name: str) -> schema.TargetConfig:
    if Path(name).is_dir():
        return schema.TargetConfig(name="target", path=name, dtype="float32", device="cpu")
    schema.register()
    with initialize_config_dir(CONF, version_base=None):
        return schema.resolve(compose("config", [f"target={name}"])).target


if __name__ == "__main__":
    main()
