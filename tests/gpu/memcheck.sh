#!/usr/bin/env bash
# Runs the conformance cases of LayerZero's own CUDA kernels under compute-sanitizer's memcheck: wrong accesses to memory,
# also of kernels that a test does not notice. Exit code: not 0 if there was one, or a test failed.
#   COMPUTE_SANITIZER=... tests/gpu/memcheck.sh [options of pytest]     (SANITIZER_TOOL=racecheck: another tool)
# A CUDA toolkit has compute-sanitizer, and so has `pip install nvidia-cuda-sanitizer-api==13.5.25` (of 13.0 and 13.1 the
# wheels lack programs that it starts, and it says that the target ended before its first call).
set -euo pipefail
cd "$(dirname "$0")/../.."
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || true)}
[ -n "$sanitizer" ] || {
  echo "memcheck: wanted compute-sanitizer on PATH or in COMPUTE_SANITIZER, got none" >&2
  exit 2
}
exec "$sanitizer" --tool "${SANITIZER_TOOL:-memcheck}" --target-processes all --error-exitcode 3 \
  "${PYTHON:-python3}" -m pytest tests/gpu/test_conformance.py -q -p no:cacheprovider --kernel 'cuda.*' "$@"
