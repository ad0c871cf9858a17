"""vLLM's layers with LayerZero's operations, for engines whose `ops` name them; every other engine runs vLLM's own code.

Activations and rotary embeddings are classes in vLLM's table of out-of-tree operations. What has no such table (linear
layers without quantization; samplers, in sampling.py) is a subclass under the name that vLLM looks up.
"""

from typing import Any

import torch
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers import activation, linear, rotary_embedding, vocab_parallel_embedding

from layerzero.integrations.vllm import sampling
from layerzero.integrations.vllm.options import wanted
from layerzero.torch import attach

# Operators, not the C functions: torch.compile traces these layers.
_ops = torch.ops.layerzero


class _Replacing:
    """A layer of vLLM that calls LayerZero where its engine asks for it, in eager mode and compiled."""

    op = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if wanted(self.op):
            self._forward_method = self.layerzero_forward

    def layerzero_forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class LayerZeroSiluAndMul(_Replacing, activation.SiluAndMul):
    op = "silu_and_mul"

    def layerzero_forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ops.silu_and_mul(x)


class LayerZeroGeluAndMul(_Replacing, activation.GeluAndMul):
    op = "gelu_and_mul"

    def layerzero_forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ops.gated_activation(x, activation="gelu" if self.approximate == "none" else "gelu_tanh")


class _Rotary(_Replacing):
    op = "rotary_embedding"

    def layerzero_forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """query and key (tokens, heads * head size) or (tokens, heads, head size); returns rotated ones."""
        cos, sin = self._match_cos_sin_cache_dtype(query).chunk(2, dim=-1)  # type: ignore[attr-defined]
        positions = positions.flatten()

        def rotated(x: torch.Tensor) -> torch.Tensor:
            rows = x.view(1, positions.shape[0], -1, self.head_size)  # type: ignore[attr-defined]
            pairs, columns = not self.is_neox_style, self.rotary_dim  # type: ignore[attr-defined]
            out = _ops.rope(rows, cos, sin, pairs, position_ids=positions, rotary_dim=columns, layout="BSHD")
            return out.view(x.shape)

        return rotated(query), None if key is None else rotated(key)


class LayerZeroLinearMethod(linear.UnquantizedLinearMethod):
    """Products with weights of 16 or 32 bits: few rows have kernels of LayerZero's own, many rows those of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.own = wanted("linear")

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _ops.linear(x, layer.weight, bias) if self.own else super().apply(layer, x, bias)


class LayerZeroEmbeddingMethod(vocab_parallel_embedding.UnquantizedEmbeddingMethod):
    """The same for the product of the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.own = wanted("linear")

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _ops.linear(x, layer.weight, bias) if self.own else super().apply(layer, x, bias)


def register() -> None:
    """Puts the classes where vLLM looks for them, once."""
    if "SiluAndMul" in op_registry_oot and op_registry_oot["SiluAndMul"] is LayerZeroSiluAndMul:
        return
    attach.attach_if_imported()
    replaced: list[tuple[Any, Any]] = [
        (activation.SiluAndMul, LayerZeroSiluAndMul),
        (activation.GeluAndMul, LayerZeroGeluAndMul),
    ]
    for theirs in _rotary_classes():
        replaced.append((theirs, type(f"LayerZero{theirs.__name__}", (_Rotary, theirs), {"__module__": __name__})))
    for theirs, ours in replaced:
        if theirs.__name__ in op_registry_oot:  # another plugin has it
            continue
        CustomOp.register_oot(ours, name=theirs.__name__)
        ours.name = theirs.name  # by which custom_ops switches it, whoever runs it
    linear.UnquantizedLinearMethod = LayerZeroLinearMethod
    vocab_parallel_embedding.UnquantizedEmbeddingMethod = LayerZeroEmbeddingMethod
    sampling.register()


def _rotary_classes() -> list[Any]:
    """Classes that rotate as the base class does, with tables of their own."""
    base = rotary_embedding.RotaryEmbedding
    found, waiting = [base], [base]
    while waiting:
        for one in waiting.pop().__subclasses__():
            waiting.append(one)
            if one.forward_cuda is base.forward_cuda and one.forward_native is base.forward_native:
                found.append(one)
    return found
