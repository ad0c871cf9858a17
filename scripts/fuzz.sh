#!/usr/bin/env bash
# The fuzz target of every operation, spread over the cores: random calls (tests/conformance/random_test.cpp).
#   fuzz.sh PRESET     LZ_FUZZ_EXECUTIONS=100000 (default) calls per operation     LZ_FUZZ_SEED=7   another sequence
source "$(dirname "$0")/common.sh"
program=build/${1:?fuzz.sh PRESET}/bin/conformance_test
export LZ_FUZZ_EXECUTIONS=${LZ_FUZZ_EXECUTIONS:-100000} GTEST_TOTAL_SHARDS=16
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say "$LZ_FUZZ_EXECUTIONS random calls of every operation ($program)"
failed=0
seq 0 $((GTEST_TOTAL_SHARDS - 1)) | xargs -P "$(nproc)" -I{} env GTEST_SHARD_INDEX={} \
  "$program" --gtest_brief=1 --gtest_filter='*RandomCall*' | tee "$log" || failed=1
awk '/ random calls / { for (i = 2; i <= NF; ++i) if ($i == "random") calls += $(i - 1) }
     /\[  PASSED  \]/ { passed += $4 } /\[  FAILED  \].*tests?,/ { failed += $4 }
     END { printf "%d random calls\n%d passed, %d failed, 0 skipped\n", calls, passed, failed }' "$log"
exit $failed
