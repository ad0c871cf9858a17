#!/usr/bin/env bash
# The numbers that the project promises, measured on this machine: bench/results/<name>-<machine>.json.
source "$(dirname "$0")/common.sh"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
machine=$("$VENV_PYTHON" scripts/machine.py)
mkdir -p bench/results
run() {
  local name=$1 out=bench/results/$1-$machine.json
  shift
  say "layerzero bench $name"
  "$VENV_PYTHON" -m layerzero bench "$name" "$@" --json | "$VENV_PYTHON" scripts/stamp_result.py >"$out.part" ||
    die "layerzero bench $name failed"
  mv "$out.part" "$out"
  cat "$out"
}
run select
run host
run e2e --model smollm2
run models
