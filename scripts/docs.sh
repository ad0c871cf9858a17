#!/usr/bin/env bash
# The documentation as a site: build/site/index.html. Fails on a broken link or anchor. Further arguments are mkdocs's.
source "$(dirname "$0")/common.sh"
# NO_MKDOCS_2_WARNING: a notice about another generator. --quiet would also keep warnings from being counted.
NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs "$VENV_PYTHON" -m mkdocs build --strict "$@" 2> >(grep -v '^INFO' >&2)
say "build/site/index.html"
