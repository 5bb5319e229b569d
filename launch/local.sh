#!/usr/bin/env bash
# Run draftline on this machine's GPUs (or in N processes on its CPU).
#
#   launch/local.sh [-n RANKS] [OVERRIDE ...]
#   launch/local.sh -n 8 stage=train target=qwen3_4b drafter=dspark
#
# RANKS defaults to the visible GPUs, else 1. Everything else goes to `python -m pipeline`. PYTHON chooses the
# interpreter. Ctrl-C or SIGTERM lets the ranks finish their step and save a checkpoint; the same command resumes.
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
# Spinning OpenMP threads of several processes make each other tens of times slower.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
exec "${PYTHON:-python}" -m pipeline "${ranks[@]}" "$@"
