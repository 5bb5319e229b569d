#!/usr/bin/env bash
# Serve a target with a draft that `stage=export` made, in one engine.
#
#   launch/serve_draft.sh ENGINE EXPORT [TARGET] [ENGINE OPTION ...]
#   launch/serve_draft.sh vllm artifacts/export/qwen3_4b_dspark_vllm/v0 --port 8000
#
# ENGINE is vllm, sglang, llama_cpp or mlx. EXPORT is the folder of an export for that engine or for the Hub (vLLM also
# reads exports for speculators). TARGET is a Hub id or a folder, and for llama_cpp a GGUF file. Without TARGET, or with a
# dash, the target is the Hub id (and revision) in the export's provenance.json, for llama_cpp the export's target.gguf.
# The server listens on 127.0.0.1 unless an option says otherwise. PYTHON is the interpreter that has vLLM or SGLang;
# LLAMA_SERVER and MLX_DSPARK are the programs of the other two engines.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

if [[ ${1:-} == -h ]]; then
    usage
    exit 0
fi
if [[ $# -lt 2 ]]; then
    usage >&2
    exit 2
fi

# stages/export/serve.py prints the command. PYTHONPATH is set for it alone, so that the engine does not see draftline.
root=$(cd "$(dirname "$0")/.." && pwd)
command=$(PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" "${PYTHON:-python}" -m stages.export.serve "$@")
eval "exec $command"
