#!/usr/bin/env bash
# libxsmm.sh FILE: makes a shared libxsmm without BLAS from the archives in Debian's libxsmm-dev, with the command that
# `layerzero backends` prints.
set -euo pipefail
exec gcc -shared -o "$1" -Wl,--whole-archive -l:libxsmm.a -Wl,--no-whole-archive -l:libxsmmnoblas.a -lm -ldl -lrt -lpthread
