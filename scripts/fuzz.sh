#!/usr/bin/env bash
# The fuzz target of every operation, spread over the cores: random calls (tests/conformance/random_test.cpp).
#   fuzz.sh PRESET     LZ_FUZZ_EXECUTIONS=100000 (default) calls per operation     LZ_FUZZ_SEED=7   another sequence
# An operation that passed with this very program, number of calls and seed is not run again: logs in build/fuzz-PRESET.
source "$(dirname "$0")/common.sh"
program=build/${1:?fuzz.sh PRESET}/bin/conformance_test
state=build/fuzz-$1
export LZ_FUZZ_EXECUTIONS=${LZ_FUZZ_EXECUTIONS:-100000} program state
run="$(sha256sum <"$program") $LZ_FUZZ_EXECUTIONS ${LZ_FUZZ_SEED:-}"
# Shorter stacks of allocations and a smaller quarantine: a fifth less time.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=1:quarantine_size_mb=8}
mkdir -p "$state"
[ "$(cat "$state/of" 2>/dev/null)" = "$run" ] || rm -f "$state"/*.passed
echo "$run" >"$state/of"

# One operation: its log becomes NAME.passed when it has passed.
fuzz_one() {
  local name=${1##*/}
  [ -e "$state/$name.passed" ] && return
  if "$program" --gtest_brief=1 --gtest_filter="$1" >"$state/$name.log" 2>&1; then
    mv "$state/$name.log" "$state/$name.passed"
    echo "$name passed: $(grep ' random calls ' "$state/$name.passed")"
  else
    cat "$state/$name.log"
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
passed=$(find "$state" -name '*.passed' | wc -l)
{ cat "$state"/*.passed 2>/dev/null || true; } |
  awk '/ random calls / { for (i = 2; i <= NF; ++i) if ($i == "random") calls += $(i - 1) }
       END { print calls + 0, "random calls" }'
echo "$passed passed, $((${#targets[@]} - passed)) failed, 0 skipped"
exit $failed
