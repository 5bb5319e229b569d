#!/usr/bin/env bash
# Serve the target with an OpenAI-compatible server, for `answers=openai`.
#
#   launch/serve_target.sh [-e vllm|sglang] [-p PORT] [-H HOST] [-t TENSOR_PARALLEL] MODEL [ENGINE OPTION ...]
#   launch/serve_target.sh -t 2 Qwen/Qwen3-4B
#   python -m pipeline stage=cache target=qwen3_4b answers=openai 'answers.openai.base_urls=[http://127.0.0.1:8000/v1]'
#
# The server listens on 127.0.0.1 unless -H names another host, because neither engine asks for a key by default. PYTHON is
# an interpreter that has vLLM or SGLang; draftline itself needs neither.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

engine=vllm port=8000 host=127.0.0.1 parallel=1
while getopts 'e:p:H:t:h' option; do
    case $option in
        e) engine=$OPTARG ;;
        p) port=$OPTARG ;;
        H) host=$OPTARG ;;
        t) parallel=$OPTARG ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
if [[ $# -lt 1 ]]; then
    usage >&2
    exit 2
fi
model=$1
shift

case $engine in
    vllm)
        exec "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server --model "$model" --host "$host" --port "$port" \
            --tensor-parallel-size "$parallel" --generation-config auto "$@" ;;
    sglang)
        exec "${PYTHON:-python}" -m sglang.launch_server --model-path "$model" --host "$host" --port "$port" \
            --tp "$parallel" "$@" ;;
    *)
        echo "-e $engine: expected vllm or sglang" >&2
        exit 2 ;;
esac
