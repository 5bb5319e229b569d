#!/usr/bin/env bash
# Run draftline on this machine's GPUs (or in N processes on its CPU).
#
#   launch/local.sh [-n RANKS] [OVERRIDE ...]
#   launch/local.sh -n 8 stage=train target=qwen3_4b drafter=dspark
#
# RANKS is by default the number of visible GPUs, or 1 without a GPU. `python -m pipeline` gets all other arguments.
# PYTHON names the interpreter. On Ctrl-C or SIGTERM the ranks finish their step and save a checkpoint; the same command
# resumes the run.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

ranks=()
while getopts 'n:h' option; do
    case $option in
        n) ranks=("ranks=$OPTARG") ;;
        h) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

cd "$(dirname "$0")/.."
# Otherwise idle OpenMP threads spin, which makes several processes tens of times slower.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
exec "${PYTHON:-python}" -m pipeline "${ranks[@]}" "$@"
