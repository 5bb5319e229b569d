#!/usr/bin/env bash
# Serve a target with a draft that `stage=export` made, in one engine.
#
#   launch/serve_draft.sh ENGINE EXPORT [TARGET] [ENGINE OPTION ...]
#   launch/serve_draft.sh vllm artifacts/export/qwen3_4b_dspark_vllm/v0 --port 8000
#
# ENGINE: vllm | sglang | llama_cpp | mlx. EXPORT: the folder of an export for that engine or for the Hub (vLLM reads
# speculators' too). TARGET: a Hub id or a folder, for llama_cpp a GGUF file; without it, the Hub id (and revision) in the
# export's provenance.json, for llama_cpp the export's target.gguf. It listens on 127.0.0.1 unless an option says otherwise.
# PYTHON is the interpreter that has vLLM or SGLang; LLAMA_SERVER and MLX_DSPARK name the other two programs.
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
engine=$1 export=${2%/} target=
shift 2
if [[ $# -gt 0 && $1 != -?* ]]; then # no option: the target, or a dash in its place
    target=${1#-}
    shift
fi
case $engine in
    vllm | sglang | llama_cpp | mlx) ;;
    *)
        echo "$engine: expected vllm, sglang, llama_cpp or mlx" >&2
        exit 2 ;;
esac

# Algorithm, drafts a round, the target's revision and the target; or what is wrong with the export.
facts=$("${PYTHON:-python}" - "$engine" "$export" "$target" <<'PYTHON_END'
import json
import os
import sys

engine, folder, target = sys.argv[1:]


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def read(name):
    path = os.path.join(folder, name)
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        fail(f"{path}: expected JSON, got: {error}")


def remake(draft):
    """The command that makes an export for this engine; a draft of a folder has no reference to name it by."""
    more = " export.converter=convert_hf_to_gguf.py" if engine == "llama_cpp" else ""
    return f"python -m pipeline stage=export export={engine} draft={draft if ':' in draft else 'DRAFT'}{more}"


def check_made_for_this_engine(manifest, draft):
    if manifest["kind"] != "export":
        own = f"{manifest['name']}:{manifest['version']}" if manifest["kind"] == "draft" else draft
        fail(f"{folder}: expected an export, found an artifact of kind {manifest['kind']}; to make one: {remake(own)}")
    form = manifest["config"]["format"]
    if form not in (engine, "hub") and (engine, form) != ("vllm", "speculators"):
        fail(f"{folder}: an export for {form}, expected one for {engine}; to make it: {remake(draft)}")


def algorithm(config):
    """By the fields of config.json (stages/export/layouts.py): its name, and drafts a round."""
    kind = config.get("speculators_model_type")
    if kind is None:
        name = (config.get("architectures") or ["nothing"])[0]
        known = {"Eagle3": "eagle3", "DFlashDraftModel": "dflash", "DSpark": "dspark"}
        kind = next((kind for part, kind in known.items() if part in name), None)
        if kind is None:
            fail(f"{folder}/config.json: architectures: expected DSpark, DFlash or Eagle3, got {name}: no engine serves it")
    first = kind == "eagle3" or config.get("sample_from_anchor", kind == "dspark")
    methods = config.get("speculators_config", {}).get("proposal_methods")
    return kind, methods[0]["speculative_tokens"] if methods else config["block_size"] - (0 if first else 1)


def gguf(draft):
    chosen = target or f"{folder}/target.gguf"
    for path in (f"{folder}/draft.gguf", chosen):
        if not os.path.isfile(path):
            fail(f"{path}: no such file; to make GGUF files: {remake(draft)}")
    return chosen


def known_target(origin):
    """(Hub id, revision) that the export says."""
    said, path = (origin or {}).get("target") or {}, f"{folder}/provenance.json"
    if not said.get("hub_id"):
        why = f"{path}: no such file" if origin is None else f"{path}: target.hub_id: expected a Hub id, found none"
        fail(f"{why}; name the target (a folder or a Hub id): launch/serve_draft.sh {engine} {folder} TARGET")
    return said["hub_id"], said.get("revision") or ""


config, manifest, origin = (read(f"{name}.json") for name in ("config", "manifest", "provenance"))
draft = ((origin or {}).get("draft") or {}).get("reference") or ""
if config is None:
    fail(f"{folder}: expected the folder of an export, found no config.json in it")
if manifest is not None:
    check_made_for_this_engine(manifest, draft)
kind, drafts = algorithm(config)
revision = ""
if engine == "llama_cpp":
    target = gguf(draft)
elif not target:
    target, revision = known_target(origin)
print(kind, drafts, revision, target, sep="\n")
PYTHON_END
)
{ read -r kind && read -r drafts && read -r revision && read -r target; } <<<"$facts"
pinned=(${revision:+--revision "$revision"})

case $engine in
    vllm)
        # DSpark needs vLLM's second model runner.
        if [[ $kind == dspark ]]; then export VLLM_USE_V2_MODEL_RUNNER="${VLLM_USE_V2_MODEL_RUNNER:-1}"; fi
        exec "${PYTHON:-python}" -m vllm.entrypoints.openai.api_server --model "$target" "${pinned[@]}" --host 127.0.0.1 \
            --speculative-config "{\"method\": \"$kind\", \"model\": \"$export\", \"num_speculative_tokens\": $drafts}" \
            "$@" ;;
    sglang)
        steps=()
        if [[ $kind == eagle3 ]]; then steps=(--speculative-num-steps "$drafts" --speculative-eagle-topk 1); fi
        exec "${PYTHON:-python}" -m sglang.launch_server --model-path "$target" "${pinned[@]}" --host 127.0.0.1 \
            --speculative-algorithm "${kind^^}" --speculative-draft-model-path "$export" "${steps[@]}" \
            --speculative-num-draft-tokens $((drafts + 1)) "$@" ;;
    llama_cpp)
        exec "${LLAMA_SERVER:-llama-server}" -m "$target" -md "$export/draft.gguf" --host 127.0.0.1 --metrics \
            --spec-type "draft-$kind" --spec-draft-n-max "$drafts" "$@" ;;
    mlx)
        # It would quantise the draft to 4 bits.
        exec "${MLX_DSPARK:-mlx-dspark}" serve --mode "$kind" --model "$target" --drafter "$export" \
            --drafter-bits 0 --host 127.0.0.1 "$@" ;;
esac
