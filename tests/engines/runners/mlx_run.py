"""Runs in mlx-dspark's environment. Prints greedy answers to prompts, one at a time, and its rounds as a line of JSON.

Standard input: {"target", "draft": null | {"kind": "dspark" | "dflash", "folder"}, "prompts", "new", "positions"}.
"""

import json
import sys

import mlx.core as mx
from mlx_dspark import generate, load


def drafted(target, tokenizer, draft):
    """A function (prompt, new, on_round) that answers with the draft in fp32, without quantisation, in whole blocks."""
    if draft["kind"] == "dspark":
        drafter, _ = load.load_drafter(draft["folder"], quantize=False)
        write = generate.speculative_generate
    else:
        drafter, _ = load.load_dflash(draft["folder"], quantize=False)
        write = generate.dflash_generate
    drafter.set_dtype(mx.float32)

    def answer(prompt, new, on_round):
        return write(
            target,
            tokenizer,
            drafter,
            prompt_ids=prompt,
            max_new_tokens=new,
            max_draft_tokens=None,
            lookup_drafts=False,
            on_round=on_round,
        )

    return answer


def main():
    asked = json.load(sys.stdin)
    generate.eos_token_ids = lambda tokenizer: set()  # answers do not end early
    target, tokenizer = load.load_target(asked["target"], require_tap=True)
    target.model.set_dtype(mx.float32)
    if asked["draft"]:
        write = drafted(target, tokenizer, asked["draft"])
    else:

        def write(prompt, new, on_round):
            return generate.greedy_generate(target, tokenizer, prompt_ids=prompt, max_new_tokens=new)

    lengths, answers = [], []
    for prompt in asked["prompts"]:
        made = write(prompt, asked["new"], lambda accepted, **_: lengths.append(accepted))
        answers.append(list(made.token_ids)[: asked["new"]])
    positions = [sum(length > k for length in lengths) for k in range(asked["positions"])]
    counters = {"drafts": len(lengths), "accepted": sum(lengths), "by_position": positions}
    print(json.dumps({"answers": answers, "counters": counters}))


if __name__ == "__main__":
    main()
