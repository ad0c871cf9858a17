#!/usr/bin/env bash
# Configures and compiles one CMake preset (default: release), then stages the Python package next to the libraries.
#   build.sh PRESET [TARGET]     everything by default; python_package excludes tests and benchmarks, python_package_cpu
#                                also the CUDA kernels
source "$(dirname "$0")/common.sh"
preset=${1:-release}
export NINJA_STATUS='[%f/%t %es] '
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1

# Ninja reconfigures when a CMake file changes, but does not track presets and the interpreter.
if [ ! -f "build/$preset/build.ninja" ] || [ CMakePresets.json -nt "build/$preset/build.ninja" ]; then
  mkdir -p build  # for the log, in a fresh tree
  say "configuring build/$preset"
  cmake --preset "$preset" --no-warn-unused-cli -DPython_EXECUTABLE="$VENV_PYTHON" -DPython3_EXECUTABLE="$VENV_PYTHON" \
    >"build/configure-$preset.log" 2>&1 || {
    tail -n 30 "build/configure-$preset.log" >&2
    die "cmake did not configure (build/configure-$preset.log)"
  }
fi
say "compiling build/$preset"
cmake --build "build/$preset" ${2:+--target "$2"}
case $preset in
  dev | release | cuda) "$VENV_PYTHON" scripts/stage_package.py "$preset" ;;
esac
