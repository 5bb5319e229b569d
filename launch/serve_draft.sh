#!/usr/bin/env bash
# Serve a target with a draft that `stage=export` made, in one engine.
#
#   launch/serve_draft.sh ENGINE EXPORT TARGET [ENGINE OPTION ...]
#   launch/serve_draft.sh vllm artifacts/export/qwen3_4b_dspark_vllm/v0 Qwen/Qwen3-4B --port 8000
#
# ENGINE: vllm | sglang | llama_cpp | mlx. EXPORT: the folder of that engine's export (llama_cpp: one with draft.gguf and
# target.gguf, export.converter=...; TARGET is then a dash). It listens on 127.0.0.1 unless an option says otherwise.
# PYTHON is the interpreter that has vLLM or SGLang; LLAMA_SERVER and MLX_DSPARK name the other two programs.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

if [[ ${1:-} == -h ]]; then
    usage
    exit 0
fi
if [[ $# -lt 3 ]]; then
    usage >&2
    exit 2
fi
engine=$1 export=$2 target=$3
shift 3
if [[ ! -f $export/config.json ]]; then
    echo "$export: expected the folder of an export, found no config.json in it" >&2
    exit 2
fi

# Algorithm, drafts a round and slots of a block, by the fields of config.json (stages/export/layouts.py).
read -r kind drafts < <("${PYTHON:-python}" - "$export/config.json" <<'PYTHON_END'
import json
import sys

config = json.load(open(sys.argv[1]))
kind = config.get("speculators_model_type")
if kind is None:
    name = config["architectures"][0]
    kind = "eagle3" if "Eagle3" in name else "dflash" if name == "DFlashDraftModel" else "dspark"
first = kind == "eagle3" or config.get("sample_from_anchor", kind == "dspark")
methods = config.get("speculators_config", {}).get("proposal_methods")
drafts = methods[0]["speculative_tokens"] if methods else config["block_size"] - (0 if first else 1)
print(kind, drafts)
PYTHON_END
)

case $engine in
    vllm)
        # DSpark needs vLLM's second model runner.
        if [[ $kind == dspark ]]; then export VLLM_USE_V2_MODEL_RUNNER="${VLLM_USE_V2_MODEL_RUNNER:-1}"; fi
        exec "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server --model "$target" --host 127.0.0.1 \
            --speculative-config "{\"method\": \"$kind\", \"model\": \"$export\", \"num_speculative_tokens\": $drafts}" \
            "$@" ;;
    sglang)
        steps=()
        if [[ $kind == eagle3 ]]; then steps=(--speculative-num-steps "$drafts" --speculative-eagle-topk 1); fi
        exec "${PYTHON:-python}" -m sglang.launch_server --model-path "$target" --host 127.0.0.1 \
            --speculative-algorithm "${kind^^}" --speculative-draft-model-path "$export" "${steps[@]}" \
            --speculative-num-draft-tokens $((drafts + 1)) "$@" ;;
    llama_cpp)
        for file in draft.gguf target.gguf; do
            if [[ ! -f $export/$file ]]; then
                echo "$export/$file: no such file; export with export=llama_cpp export.converter=convert_hf_to_gguf.py" >&2
                exit 2
            fi
        done
        exec "${LLAMA_SERVER:-llama-server}" -m "$export/target.gguf" -md "$export/draft.gguf" --host 127.0.0.1 --metrics \
            --spec-type "draft-$kind" --spec-draft-n-max "$drafts" "$@" ;;
    mlx)
        exec "${MLX_DSPARK:-mlx-dspark}" serve --mode "$kind" --model "$target" --drafter "$export" --host 127.0.0.1 \
            "$@" ;;
    *)
        echo "$engine: expected vllm, sglang, llama_cpp or mlx" >&2
        exit 2 ;;
esac
