#!/usr/bin/env bash
# One wheel for every Python from 3.10 and every torch from 2.11: dist/layerzero_kernels-*.whl.
source "$(dirname "$0")/common.sh"
"$VENV_PYTHON" -m pip wheel . --no-deps --no-build-isolation --wheel-dir dist \
  --config-settings=cmake.define.Python_EXECUTABLE="$VENV_PYTHON"
ls -l dist/*.whl
