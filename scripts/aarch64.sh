#!/usr/bin/env bash
# Tests the engine and its kernels on 64-bit Arm without an Arm machine: cross-compiles, then tests with qemu-user.
#   aarch64.sh              the kernels' tests, then every kernel on every conformance case and some random calls
#   aarch64.sh FILTER       conformance_test alone, with this gtest filter
# Needs Debian's g++-aarch64-linux-gnu and qemu-user; the libraries are unpacked into build/aarch64-root.
source "$(dirname "$0")/common.sh"
root=$PWD/build/aarch64-root
# As Debian 12 calls them.
libraries='libhwy-dev libhwy1 libyaml-cpp-dev libyaml-cpp0.7 libsodium-dev libsodium23 libgtest-dev libgmock-dev'

for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $tool >/dev/null || die "$tool is missing. Type: apt-get install g++-aarch64-linux-gnu qemu-user"
done

if [ "$(cat "$root/made" 2>/dev/null)" != "$libraries" ]; then
  say "libraries for arm64 (build/aarch64-root)"
  rm -rf "$root"
  mkdir -p "$root"/apt/{lists,cache/archives}/partial "$root/debs"
  apt_get() { # with separate lists and downloads: the machine's configuration is not changed
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::status=/dev/null \
      -o Dir::State::Lists="$root/apt/lists" -o Dir::Cache="$root/apt/cache" -o APT::Sandbox::User=root "$@"
  }
  apt_get update
  # shellcheck disable=SC2086
  (cd "$root/debs" && apt_get download $libraries)
  for package in "$root"/debs/*.deb; do dpkg-deb -x "$package" "$root"; done
  # Headers and a CMake package, which are the same for every architecture.
  mkdir -p "$root"/usr/{include,share/cmake}
  cp -r /usr/include/nlohmann "$root/usr/include/"
  cp -r /usr/share/cmake/nlohmann_json "$root/usr/share/cmake/"
  echo "$libraries" >"$root/made"
fi

scripts/build.sh aarch64
emulated() { # one test program, then its arguments
  say "$1 under qemu"
  qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu" \
    "build/aarch64/bin/$1" --gtest_brief=1 "${@:2}"
}
export LZ_FUZZ_EXECUTIONS=${LZ_FUZZ_EXECUTIONS:-100}
if [ $# -gt 0 ]; then
  emulated conformance_test --gtest_filter="$1"
else
  emulated kernels_test
  emulated conformance_test --gtest_filter='*KernelConformance*:*RandomCall*'
fi
