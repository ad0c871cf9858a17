#!/usr/bin/env bash
# Formats C++ and Python sources; --check only reports what differs.
source "$(dirname "$0")/common.sh"
ruff=.venv/bin/ruff
mapfile -t cpp < <(cpp_files '*.h' '*.cpp' '*.cu')
if [ "${1:-}" = --check ]; then
  clang-format --dry-run --Werror "${cpp[@]}" || die "C++ sources are not formatted. Type: make format"
  "$ruff" format --check --quiet . || die "Python sources are not formatted. Type: make format"
  say "format: ${#cpp[@]} C++ files and all Python files are formatted"
else
  clang-format -i "${cpp[@]}"
  "$ruff" format .
fi
