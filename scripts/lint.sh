#!/usr/bin/env bash
# Layers, pairs, paths, promises, sizes, words, ruff, mypy, then clang-tidy on C++ sources that changed since .ci/linted.
#   --fast: without clang-tidy      --all: clang-tidy on every source
source "$(dirname "$0")/common.sh"
mode=${1:-changed}
failed=0
for check in check_layers check_pairs check_paths check_promises check_sizes check_words; do
  "$VENV_PYTHON" "scripts/$check.py" || failed=1
done
.venv/bin/ruff check . || failed=1
.venv/bin/mypy || failed=1

# Sources that differ from the commit in .ci/linted, on which clang-tidy passed for all of them (write HEAD there after a
# clean `make lint ALL=1`), and those whose own header differs. Without that commit in the history: every source.
changed_sources() {
  local base
  base=$(git rev-parse -q --verify "$(cat .ci/linted)^{commit}") || { cpp_files '*.cpp' && return; }
  { git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.h' && git ls-files --others --exclude-standard -- '*.cpp'; } |
    sed 's/\.h$/.cpp/' | sort -u | while read -r f; do [ ! -f "$f" ] || echo "$f"; done
}

if [ "$mode" != --fast ]; then
  database=build/${PRESET:-release}
  [ -f "$database/compile_commands.json" ] || die "clang-tidy reads $database/compile_commands.json. Type: make build"
  if [ "$mode" = --all ]; then
    mapfile -t sources < <(cpp_files 'src/*.cpp' 'kernels/*.cpp' 'ops/*.cpp' 'bindings/*.cpp')
  else
    mapfile -t sources < <(changed_sources | grep -E '^(src|kernels|ops|bindings)/' || true)
  fi
  say "clang-tidy: ${#sources[@]} sources"
  [ ${#sources[@]} -eq 0 ] ||
    printf '%s\0' "${sources[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$database" \
      2> >(grep -v 'warnings\? generated' >&2) || failed=1
fi
exit $failed
