#!/usr/bin/env bash
# dist/layerzero_kernels-*.whl: one wheel for every Python from 3.10 and every torch from 2.11.
#     (no argument)  manylinux_2_28, checked by auditwheel: glibc 2.28 or newer, C++ dependencies linked in
#     --local        for this machine only, with its compiler and libraries: faster, for development
source "$(dirname "$0")/common.sh"
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} CCACHE_NOHASHDIR=1
kind=portable
[ "${1:-}" != --local ] || kind=local
settings=(build-dir="build/wheel-$kind" cmake.define.Python3_EXECUTABLE="$VENV_PYTHON"
  cmake.define.LZ_BUILD_CUDA="${LZ_BUILD_CUDA:-AUTO}")
if [ $kind = portable ]; then
  scripts/portable.sh
  export CCACHE_COMPILERCHECK=content  # each clone's compiler is a new file with the same contents
  settings+=(cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/portable.cmake")
else # the names that CMake finds by itself, so that ccache reuses the objects of scripts/build.sh
  export CC=${CC:-cc} CXX=${CXX:-c++}
fi
built=build/wheel-$kind/dist
rm -rf "$built"
say "building the wheel ($kind)"
"$VENV_PYTHON" -m pip wheel . --no-deps --no-build-isolation --wheel-dir "$built" "${settings[@]/#/--config-settings=}" \
  >"build/wheel-$kind.log" 2>&1 || {
  tail -n 30 "build/wheel-$kind.log" >&2
  die "the wheel was not built (build/wheel-$kind.log)"
}
mkdir -p dist
if [ $kind = portable ]; then
  # torch itself loads its libraries, before ours: they are not bundled.
  PATH=$PWD/.venv/bin:$PATH "$VENV_PYTHON" -m auditwheel repair --plat manylinux_2_28_x86_64 --only-plat --exclude 'libtorch*' --exclude 'libc10*' \
    --wheel-dir dist "$built"/*.whl
else
  cp "$built"/*.whl dist/
fi
ls -l dist/*.whl
