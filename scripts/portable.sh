#!/usr/bin/env bash
# Makes the inputs of cmake/portable.cmake in build/portable: wrappers of the `ziglang` package's compiler for glibc
# 2.28 and static libraries of the C++ dependencies, built from Debian's source packages. Does nothing if they exist.
source "$(dirname "$0")/common.sh"
suite=bookworm # has the oldest highway, libsodium and yaml-cpp that the engine supports
root=$PWD/build/portable
zig=$("$VENV_PYTHON" -c 'import pathlib, ziglang; print(pathlib.Path(ziglang.__file__).parent / "zig")')
want="$suite $("$zig" version)"
[ "$(cat "$root/made" 2>/dev/null)" = "$want" ] && exit 0
rm -rf "$root"
mkdir -p "$root"/{bin,prefix/include,sources} "$root"/apt/{lists,cache/archives}/partial

# ccache identifies a compiler by its name and the contents of this file, so the file has the version and no path: other
# clones reuse the compiled objects.
ln -s "$zig" "$root/bin/zig"
wrap() {
  printf '#!/bin/sh\n# %s\nexec "$(dirname "$0")/zig" %s "$@"\n' "$want" "$2" >"$root/bin/$1"
  chmod +x "$root/bin/$1"
}
wrap zig-clang 'cc -target x86_64-linux-gnu.2.28'
wrap zig-clang++ 'c++ -target x86_64-linux-gnu.2.28'
wrap zig-ar ar
wrap zig-ranlib ranlib

say "source packages of the dependencies (build/portable)"
sources="$root/apt/sources.list"
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >"$sources"
apt_get() { # with separate lists and downloads: the machine's configuration is not changed
  apt-get -qq -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::Lists="$root/apt/lists" \
    -o Dir::Cache="$root/apt/cache" -o APT::Sandbox::User=root "$@"
}
apt_get update
(cd "$root/sources" && apt_get source highway libsodium yaml-cpp >"$root/apt.log" 2>&1) ||
  die "the source packages could not be fetched or unpacked (build/portable/apt.log)"

cmake_library() { # a folder pattern below sources/, then definitions
  local source
  source=$(echo "$root"/sources/$1)
  shift
  cmake -S "$source" -B "$source/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/portable.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_VISIBILITY_PRESET=hidden \
    -DCMAKE_VISIBILITY_INLINES_HIDDEN=ON -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_INSTALL_PREFIX="$root/prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@" >>"$root/build.log" 2>&1 &&
    cmake --build "$source/build" --target install >>"$root/build.log" 2>&1
}
sodium() { # portable code only, without its configure script; version.h is the one shipped for other systems
  local include=$root/prefix/include objects=$root/sources/sodium
  cd "$root"/sources/libsodium-*/src/libsodium || return
  cp -r include/sodium.h include/sodium "$include" && cp ../../builds/msvc/version.h "$include/sodium/" && mkdir "$objects" &&
    find . -name '*.c' -print0 | xargs -0 -P "$(nproc)" -I{} bash -c '"$0/bin/zig-clang" -O2 -fPIC -fvisibility=hidden \
      -DCONFIGURED=1 -DNATIVE_LITTLE_ENDIAN=1 -I"$0/prefix/include" -I"$0/prefix/include/sodium" \
      -c "$2" -o "$1/$(echo "${2#./}" | tr / _).o"' "$root" "$objects" {} &&
    "$root/bin/zig-ar" rcs "$root/prefix/lib/libsodium.a" "$objects"/*.o
}
say "compiling them for glibc 2.28"
{
  cmake_library 'highway-*' -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF &&
    cmake_library 'yaml-cpp-*' -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF &&
    (sodium) >>"$root/build.log" 2>&1
} || { tail -n 30 "$root/build.log" >&2 && die "a dependency did not compile (build/portable/build.log)"; }

# Only headers: the system's, separate from those of the C library.
config=$(find /usr/{,local/}{share,lib}/cmake -maxdepth 1 -name nlohmann_json -print -quit 2>/dev/null || true)
[ -n "$config" ] || die "nlohmann-json's CMake package is not on this machine. Type: make setup"
mkdir -p "$root/prefix/share/cmake"
cp -r "$config" "$root/prefix/share/cmake/"
cp -r "${config%/*/cmake/nlohmann_json}/include/nlohmann" "$root/prefix/include/"
# Debian's Python.h includes from this folder.
for headers in /usr/include/*/python3*; do
  [ -d "$headers" ] && mkdir -p "$root/prefix/include/$(basename "$(dirname "$headers")")" &&
    ln -s "$headers" "$root/prefix/include/$(basename "$(dirname "$headers")")/"
done
echo "$want" >"$root/made"
