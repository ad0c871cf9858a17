"""The norms, rotations, gated MLPs and attentions in a forward of each family, against which `kernelize` is measured.

Counted in one forward of `Family.example()`, two layers deep: norms and attentions by call, RoPE by rotated tensor
(query and key of a layer are two), gated MLPs by call, the experts of a layer as one. `Excluded` lists sites that no
operation computes or that cannot be reached. tests/python/test_families.py compares the list with the models' own
forwards.
"""

from typing import NamedTuple

# Kind of site -> operations that replace it.
OPERATIONS = {
    "norm": ("rms_norm", "layer_norm", "fused_add_rms_norm", "fused_add_layer_norm"),
    "rope": ("rope",),
    "mlp": ("swiglu", "geglu", "gated_activation", "silu_and_mul", "fused_mlp", "fused_moe"),
    "attention": ("attention", "cross_attention", "ragged_attention", "mla_prefill"),
}


class Excluded(NamedTuple):
    """Sites of one kind that cannot be replaced, and why."""

    kind: str
    sites: int
    reason: str


class Sites(NamedTuple):
    """All sites of a forward by kind; those of `excluded` are not replaceable."""

    norm: int
    attention: int
    rope: int = 0
    mlp: int = 0
    excluded: tuple[Excluded, ...] = ()

    def listed(self, kind: str) -> int:
        return getattr(self, kind)

    def replaceable(self, kind: str) -> int:
        return self.listed(kind) - sum(one.sites for one in self.excluded if one.kind == kind)


_LLAMA = Sites(norm=5, rope=4, mlp=2, attention=2)
_FOUR_NORMS = _LLAMA._replace(norm=9)
_PLAIN = Sites(norm=5, attention=2)
_TWO_STACKS = Sites(norm=12, attention=6)
_OWN_ATTENTION = Excluded("attention", 2, "its class computes attention itself and refuses the attention interface")

SITES = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _FOUR_NORMS,
    "qwen3_moe": _FOUR_NORMS,
    "qwen2_moe": _LLAMA._replace(mlp=4),
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "olmoe": _FOUR_NORMS,
    "gemma2": _FOUR_NORMS,
    "gemma3": _LLAMA._replace(norm=13),
    "phi3": _LLAMA,
    "gpt2": _PLAIN,
    "gpt_neox": _PLAIN._replace(rope=4),
    "opt": _PLAIN,
    "falcon": Sites(norm=3, rope=4, attention=2, excluded=(_OWN_ATTENTION,)),
    "falcon_new": Sites(norm=5, rope=4, attention=2, excluded=(_OWN_ATTENTION,)),
    "gptj": Sites(norm=3, rope=4, attention=2),
    "codegen": Sites(norm=3, rope=4, attention=2),
    "bloom": Sites(norm=6, attention=2, excluded=(_OWN_ATTENTION,)),
    "cohere": _LLAMA._replace(norm=3),
    "olmo2": _FOUR_NORMS,
    "olmo": _LLAMA,
    "nemotron": _PLAIN._replace(rope=4),
    "bitnet": _FOUR_NORMS,
    "granite": _LLAMA,
    "deepseek_v3": _FOUR_NORMS._replace(mlp=3),
    "dots1": _FOUR_NORMS._replace(mlp=3),
    "phimoe": _LLAMA,
    "ernie4_5_moe": _LLAMA._replace(mlp=3),
    "gpt_oss": _LLAMA,
    "qwen3_next": Sites(norm=8, rope=2, mlp=4, attention=1),
    "bert": _PLAIN,
    "roberta": _PLAIN,
    "distilbert": _PLAIN,
    "modernbert": _LLAMA,
    "t5": _TWO_STACKS,
    "bart": _TWO_STACKS,
    "whisper": _TWO_STACKS,
    "vit": _PLAIN,
    "clip": _PLAIN._replace(norm=6),
    "siglip": Sites(
        norm=6,
        attention=3,
        excluded=(
            Excluded("attention", 1, "its pooling head is torch.nn.MultiheadAttention, which projects by itself"),
        ),
    ),
}
