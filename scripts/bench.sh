#!/usr/bin/env bash
# Measures the project's promised numbers on this machine: bench/results/<name>-<machine>.json.
source "$(dirname "$0")/common.sh"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
machine=$("$VENV_PYTHON" scripts/machine.py)
mkdir -p bench/results
run() { # NAME of the result, COMMAND of `layerzero bench`
  local out=bench/results/$1-$machine.json
  shift
  say "layerzero bench $*"
  "$VENV_PYTHON" -m layerzero bench "$@" --json | "$VENV_PYTHON" scripts/stamp_result.py >"$out.part" ||
    die "layerzero bench $* failed"
  mv "$out.part" "$out"
  cat "$out"
}
run select select
run host host
run threads threads
run e2e e2e --model smollm2
[ ! -d .venv/peers ] || run e2e-peers e2e --peers # after `make peers`
run models models
run ops ops
