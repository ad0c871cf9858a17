#!/usr/bin/env bash
# libxsmm.sh FILE: a shared libxsmm without a BLAS behind it, of the archives in Debian's libxsmm-dev. As `layerzero
# backends` prints it.
set -euo pipefail
exec gcc -shared -o "$1" -Wl,--whole-archive -l:libxsmm.a -Wl,--no-whole-archive -l:libxsmmnoblas.a -lm -ldl -lrt -lpthread
