"""Tries `kernelize` on architectures that no table of families names: bench/results/unseen-architectures-<machine>.json.

python bench/unseen_architectures.py               all
python bench/unseen_architectures.py cwm arcee     only these; earlier results of others stay in the file

Each is a small model of the installed Transformers with random weights, float32, greedy logits of padded prompts and of
one token more compared with its own code. `whole`: its layers are one program; `part`: parts are replaced; `left`:
nothing is; `wrong`: the logits differ; `not built`: it has no small configuration here. Reasons are the report's.
"""

import copy
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
UNSEEN = ("arcee", "cwm", "diffllama", "iquestcoder", "jais2", "mellum", "mimo_v2_flash", "nanochat",
          "seed_oss", "solar_open", "vaultgemma")  # fmt: skip
LARGEST_ERROR = 2e-5
_SIZES = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "v_head_dim": 16, "sliding_window": 8,
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "rotary_dim": 8,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2,
    "swa_head_dim": 16, "swa_v_head_dim": 16, "query_pre_attn_scalar": 16, "shared_expert_intermediate_size": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def build(name: str) -> Any:
    import torch
    import transformers
    from layerzero.models.families import as_trained

    torch.manual_seed(0)
    kind = type(transformers.AutoConfig.for_model(name))
    known = {*vars(kind()), *getattr(kind, "attribute_map", ())}
    config = kind(**{key: value for key, value in _SIZES.items() if key in known})
    return as_trained(transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval())


def logits_of(model: Any) -> Any:
    """Of a padded prompt and of one token more, which reads the cache; padding left out."""
    import torch

    ids = torch.randint(3, 250, (2, 21), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.inference_mode():
        first = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], use_cache=True)
        last = model(input_ids=ids[:, -1:], attention_mask=mask, past_key_values=first.past_key_values, use_cache=True)
    return torch.cat([first.logits[mask[:, :-1].bool()], last.logits[:, 0]])


def row_of(name: str) -> dict[str, Any]:
    import layerzero as lz

    try:
        model = build(name)
        own = logits_of(copy.deepcopy(model))
    except Exception as error:  # whatever a configuration of other sizes raises
        return {
            "served": "not built",
            "reason": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        }
    report = lz.kernelize(model)
    mine = logits_of(model)
    error = float((mine - own).norm() / own.norm())
    whole = "decoder" in report.replaced
    served = "wrong" if not error <= LARGEST_ERROR else "whole" if whole else "part" if report.replaced else "left"
    return {"served": served, "error": error, "reason": None if whole else report.left.get("decoder")}


def main() -> None:
    from stamp_result import machine, measured_on

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    path = ROOT / f"bench/results/unseen-architectures-{machine()}.json"
    rows = json.loads(path.read_text())["architectures"] if path.exists() and sys.argv[1:] else {}
    for name in sys.argv[1:] or UNSEEN:
        rows[name] = row_of(name)
        print(name, rows[name], file=sys.stderr)
    kinds = ("whole", "part", "left", "wrong", "not built")
    counts = {kind: sum(row["served"] == kind for row in rows.values()) for kind in kinds}
    import transformers

    result = {"measured_on": measured_on(), "transformers": transformers.__version__, "counts": counts}
    path.write_text(json.dumps(result | {"architectures": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
