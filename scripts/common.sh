# Sourced by the scripts in this folder: paths and messages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV_PYTHON=$PWD/.venv/bin/python

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}
# Lists own C++ sources that match the given patterns.
cpp_files() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done; }
