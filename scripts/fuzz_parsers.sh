#!/usr/bin/env bash
# Fuzzes every parser of texts from outside (tests/fuzz/parsers_test.cpp) under the address and undefined behaviour
# sanitizers. Compiles the parsers alone, without kernels, next to a build that has made the tables.
#   fuzz_parsers.sh PRESET     LZ_FUZZ_EXECUTIONS=10000000 texts per parser (default 100,000)     LZ_FUZZ_SEED=7
#   JOBS=1 processes at once     LZ_FUZZ_SECONDS=300 ends each parser's loop after this time
source "$(dirname "$0")/common.sh"
preset=${1:?fuzz_parsers.sh PRESET}
gen=$PWD/build/$preset/gen
[ -f "$gen/operation_table.inc" ] || die "no build/$preset: scripts/build.sh $preset first"
out=build/fuzz-parsers
mkdir -p "$out/gen"
cp "$gen"/{operation_table,devices,known_wrong}.inc "$gen/build_id.h" "$gen/test_paths.h" "$out/gen/"
echo 'namespace lz { constexpr std::array<const KernelFamily*, 0> kKernelTable = {}; }' >"$out/gen/kernel_table.inc"
sources=(tests/fuzz/parsers_test.cpp src/base/{json_reader,signature,trusted_file,library_file,reclaimer}.cpp src/core/*.cpp
  src/registry/*.cpp src/policy/{environment,facts,keys,names,policy,rules,values,yaml}.cpp src/perfdb/{key,record}.cpp
  src/health/{quarantine,outcome,mark_file}.cpp src/worker/message.cpp src/platform/{device,device_file}.cpp src/tokenize/*.cpp)
compile=$(command -v ccache || true)
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
build() {
  local object=$out/$(echo "$1" | tr / _).o
  [ "$object" -nt "$1" ] && return
  $compile g++ -std=c++20 -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -I "$out/gen" -I . -I src \
    -I include -c "$1" -o "$object"
}
export -f build
export out compile
printf '%s\n' "${sources[@]}" | xargs -P "${JOBS:-1}" -I{} bash -c 'build {}' || die "it does not compile"
g++ -fsanitize=address,undefined "$out"/*.o -lgtest -lgtest_main -lyaml-cpp -lsodium -lpthread -ldl -o "$out/parsers_test"
export LZ_FUZZ_EXECUTIONS=${LZ_FUZZ_EXECUTIONS:-100000} ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=1:quarantine_size_mb=8}
mapfile -t targets < <("$out/parsers_test" --gtest_list_tests | awk '/^  / { print $1 }')
run() {
  "$out/parsers_test" --gtest_brief=1 --gtest_filter="Parsers.$1" >"$out/$1.log" 2>&1 || { cat "$out/$1.log"; return 1; }
  printf '%s\t%s\n' "$1" "$(grep -o '[0-9]* texts.*' "$out/$1.log" | tail -n 1)"
}
export -f run
printf '%s\n' "${targets[@]}" | xargs -P "${JOBS:-1}" -I{} bash -c 'run {}'
