#!/usr/bin/env bash
# The fuzz target of every operation, spread over the cores: random calls (tests/conformance/random_test.cpp).
#   fuzz.sh PRESET     LZ_FUZZ_EXECUTIONS=100000 (default) calls per operation     LZ_FUZZ_SEED=7   another sequence
# An operation that passed with these sources, number of calls and seed is not run again. With the defaults the list of
# passed operations is bench/results/fuzz-PRESET-<machine>.tsv, from which another clone resumes; otherwise it is in
# build/.
source "$(dirname "$0")/common.sh"
preset=${1:?fuzz.sh PRESET}
program=build/$preset/bin/conformance_test
logs=build/fuzz-$preset
passed=$logs/passed.tsv
[ -n "${LZ_FUZZ_EXECUTIONS:-}${LZ_FUZZ_SEED:-}" ] ||
  passed=bench/results/fuzz-$preset-$("$VENV_PYTHON" scripts/machine.py).tsv
export LZ_FUZZ_EXECUTIONS=${LZ_FUZZ_EXECUTIONS:-100000} program logs passed
# Shorter allocation stacks and a smaller quarantine save a fifth of the time.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=1:quarantine_size_mb=8}
mkdir -p "$logs"
of="# tree $("$VENV_PYTHON" scripts/test_full.py --tree fuzz), $LZ_FUZZ_EXECUTIONS calls, seed ${LZ_FUZZ_SEED:-default}"
[ "$(head -n 1 "$passed" 2>/dev/null)" = "$of" ] || echo "$of" >"$passed"

# Runs one operation and adds a line to the list if it passed.
fuzz_one() {
  local name=${1##*/}
  grep -q "^$name"$'\t' "$passed" && return
  if "$program" --gtest_brief=1 --gtest_filter="$1" >"$logs/$name.log" 2>&1; then
    printf '%s\t%s\n' "$name" "$(grep -o '[0-9]* random calls ([0-9]* launches)' "$logs/$name.log")" | tee -a "$passed"
  else
    cat "$logs/$name.log"
    return 1
  fi
}
export -f fuzz_one

mapfile -t targets < <("$program" --gtest_list_tests --gtest_filter='*RandomCall*' |
  awk '/^[^ ]/ { suite = $1 } /^  / { print suite $1 }')
[ ${#targets[@]} -gt 0 ] || die "$program has no random calls"
say "$LZ_FUZZ_EXECUTIONS random calls of each of ${#targets[@]} operations ($program)"
failed=0
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}' || failed=1
count=$(($(wc -l <"$passed") - 1))
awk -F '\t' '{ calls += $2 } END { print calls, "random calls" }' "$passed"
echo "$count passed, $((${#targets[@]} - count)) failed, 0 skipped"
exit $failed
