"""Runs in vLLM's environment. Prints greedy answers to prompts, one at a time, and vLLM's counters as a line of JSON.

Standard input: {"target", "draft": null | {"method", "model", "num_speculative_tokens"}, "prompts", "new", "length"}.
"""

import json
import sys

from vllm import LLM, SamplingParams

COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
    "by_position": "vllm:spec_decode_num_accepted_tokens_per_pos",
}


def main() -> None:
    asked = json.load(sys.stdin)
    options = {"speculative_config": asked["draft"]} if asked["draft"] else {}
    llm = LLM(
        model=asked["target"],
        dtype="float32",
        max_model_len=asked["length"],
        max_num_seqs=1,
        enforce_eager=True,
        kv_cache_memory_bytes=128 << 20,
        seed=0,
        disable_log_stats=False,
        **options,
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=asked["new"], ignore_eos=True)
    answers = []
    for prompt in asked["prompts"]:
        (made,) = llm.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)
        answers.append(list(made.outputs[0].token_ids))
    found = {m.name: getattr(m, "value", getattr(m, "values", None)) for m in llm.get_metrics()}
    counters = {key: found.get(name) for key, name in COUNTERS.items()} if asked["draft"] else None
    print(json.dumps({"answers": answers, "counters": counters}))


if __name__ == "__main__":  # because vLLM starts processes that import this file
    main()
