#!/usr/bin/env bash
# The CI tier of a built preset: C++ tests, then Python tests. Ends with one line that counts both. TIER=all: every tier.
source "$(dirname "$0")/common.sh"
preset=${PRESET:-release}
out=$PWD/build/$preset/test-results
mkdir -p "$out"
rm -f "$out"/*.xml
case ${TIER:-ci} in
  ci) ctest_tier=(-L '^ci$') pytest_tier=(-m 'not full') ;;
  all) ctest_tier=() pytest_tier=() ;;
  *) die "TIER is ci or all, got $TIER" ;;
esac
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PRESET=$preset
export TSAN_OPTIONS=suppressions=$PWD/scripts/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}
# Two workers share the cores. OpenMP threads that spin while they wait make model tests ten times slower then.
export OMP_WAIT_POLICY=passive
failed=0

say "C++ tests (build/$preset)"
ctest --test-dir "build/$preset" "${ctest_tier[@]}" -j "$(nproc)" --output-on-failure --progress --no-tests=error \
  --output-junit "$out/ctest.xml" || failed=1

if [ -d "build/$preset/python" ]; then
  say "Python tests"
  # Two workers at most: each one loads torch.
  PYTHONPATH=$PWD/build/$preset/python "$VENV_PYTHON" -m pytest "${pytest_tier[@]}" -n 2 --dist loadfile -q \
    --junitxml "$out/pytest.xml" || failed=1
fi

"$VENV_PYTHON" scripts/test_summary.py "$out"/*.xml || failed=1
exit $failed
