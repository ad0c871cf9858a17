"""The norms and activations of diffusers' models by operations: what each class computes, and inputs that prove it.

A class is served by its exact type: a subclass may compute anything. Each module's own code and the operation are compared on rows of
three magnitudes before the module is changed.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from diffusers.models import activations, normalization
from torch import nn
from torch.nn import functional

from layerzero import _layerzero
from layerzero.errors import LayerZeroError
from layerzero.integrations.diffusers import choices
from layerzero.integrations.diffusers.replacing import (
    agrees,
    normal,
    of_rows,
    why_not_called,
    why_not_plain,
)
from layerzero.integrations.modules import first_line

_OPS = _layerzero.ops
_activation, _geglu, _swiglu = _OPS["activation"], _OPS["geglu"], _OPS["swiglu"]
_layer_norm, _rms_norm = _OPS["layer_norm"], _OPS["rms_norm"]
_MOST_CALLS = 4  # a modulated norm is a call for each sample; of a larger batch one norm and its modulation are cheaper
_SMALL = (
    1 << 20
)  # elements of a sample on a CUDA device below which another launch costs more than another pass over them


class Served(NamedTuple):
    """part, operation: as the report names them. inputs: of a module, those by which it is proven."""

    part: str
    operation: str
    forward: Callable[..., Any]
    inputs: Callable[[Any], tuple[Any, ...]]


# ---- norms of rows


def _layer(module: Any, rows: torch.Tensor, factor: Any = None, shift: Any = None, out: Any = None) -> torch.Tensor:
    """The norm of rows, and what modulates it: norm * (1 + factor) + shift."""
    held = module._parameters  # nn.Module finds an attribute there last
    weight = held["weight"] if "weight" in held else getattr(module, "weight", None)  # pruned: an attribute
    bias, offset = held["bias"] if "bias" in held else getattr(module, "bias", None), 0.0
    facts = module.__dict__
    shape, eps = list(facts.get("normalized_shape") or facts.get("dim", ())), module.eps
    if factor is not None:
        weight, bias, offset = _folded(weight, bias, factor, shift)
    if isinstance(module, nn.LayerNorm):
        return _layer_norm(rows, shape, weight, bias, eps, weight_offset=offset, out=out)
    eps = torch.finfo(rows.dtype).eps if eps is None else eps
    if factor is None and choices.is_launch_bound(rows) and _is_torchs_rms(rows, weight, eps, shape):
        result = functional.rms_norm(rows, shape, weight, eps)
    else:
        result = _rms_norm(rows, weight, eps, weight_offset=offset, normalized_shape=shape, out=out)
    return result if bias is None else result.add_(bias)


def _is_torchs_rms(rows: torch.Tensor, weight: Any, eps: float, shape: list[int]) -> bool:
    def call() -> tuple[Any, ...]:
        return (rows, weight, eps), {"normalized_shape": shape}

    return choices.is_torchs("rms_norm", "torch.rms_norm", (rows.shape, rows.dtype, rows.device, weight is None), call)


def _folded(weight: Any, bias: Any, factor: Any, shift: Any) -> tuple[Any, Any, float]:
    """The weight, bias and offset of (rows * weight + bias) * (1 + factor) + shift."""
    if weight is None:
        return factor, shift, 1.0
    factor = 1 + factor
    bias = shift if bias is None else torch.addcmul(shift, bias, factor) if shift is not None else bias * factor
    return weight * factor, bias, 0.0


def _is_mixed(module: Any, rows: torch.Tensor) -> bool:
    """Weights of another dtype than the rows: modules promote there, the operation rounds to the rows' dtype."""
    return any(held is not None and held.dtype != rows.dtype for held in module._parameters.values())


@of_rows
def _norm_forward(self: Any, rows: torch.Tensor) -> Any:
    if _is_mixed(self, rows) and type(self) is not normalization.FP32LayerNorm:
        return None
    if self.eps is None and rows.dtype not in (torch.float32, torch.float64):  # torch's own choice is of another dtype
        return None
    return _layer(self, rows)


def _rows_for(module: Any) -> torch.Tensor:
    shape = tuple(getattr(module, "normalized_shape", getattr(module, "dim", (64,))))
    weight = getattr(module, "weight", None)
    rows = normal(2, 3, *shape) + 0.5  # a mean, which one kind of norm takes away
    sizes = torch.tensor([1.0, 1 / 16, math.sqrt(module.eps or 1e-6)]).view(3, *[1] * len(shape))  # shows the epsilon
    rows = rows * sizes
    return rows if weight is None else rows.to(weight)


def _norm_inputs(module: Any) -> tuple[Any, ...]:
    return (_rows_for(module),)


# ---- norms that a timestep modulates


def _is_foldable(norm: Any) -> bool:
    """Whether its call is the norm alone."""
    ours = getattr(norm.__dict__.get("forward"), "func", None) is _norm_forward
    return type(norm) in _PLAIN_NORMS and (ours or why_not_called(norm) is None)


def _modulated(norm: Any, rows: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    """norm(rows) * (1 + factor) + shift of rows (b, s, c), factor and shift (b, c): one call of the operation for each sample."""
    fits = rows.dim() == 3 and factor.shape == (rows.shape[0], rows.shape[2]) and factor.dtype == rows.dtype
    small = rows.shape[0] > 1 and rows.numel() <= _SMALL * rows.shape[0] and choices.is_launch_bound(rows)
    if fits and small and shift is not None and not _is_mixed(norm, rows):
        return torch.addcmul(shift[:, None], norm(rows), (1 + factor)[:, None])
    if not fits or rows.shape[0] > _MOST_CALLS or not _is_foldable(norm) or _is_mixed(norm, rows) or norm.eps is None:
        scaled = norm(rows) * (1 + factor[:, None])
        return scaled if shift is None else scaled + shift[:, None]
    if rows.shape[0] == 1:
        return _layer(norm, rows, factor[0], None if shift is None else shift[0])
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    for i, sample in enumerate(rows):
        _layer(norm, sample, factor[i], None if shift is None else shift[i], out[i])
    return out


def _embedding(module: Any, timestep: Any, class_labels: Any, hidden_dtype: Any, emb: Any) -> Any:
    if module.emb is not None:
        emb = module.emb(timestep, class_labels, hidden_dtype=hidden_dtype)
    return module.linear(module.silu(emb))


@of_rows
def _zero_forward(
    self: Any, x: Any, timestep: Any = None, class_labels: Any = None, hidden_dtype: Any = None, emb: Any = None
) -> Any:
    shift, factor, *others = _embedding(self, timestep, class_labels, hidden_dtype, emb).chunk(6, dim=1)
    return _modulated(self.norm, x, factor, shift), *others


@of_rows
def _zero_single_forward(self: Any, x: Any, emb: Any = None) -> Any:
    shift, factor, gate = self.linear(self.silu(emb)).chunk(3, dim=1)
    return _modulated(self.norm, x, factor, shift), gate


@of_rows
def _zero_x_forward(self: Any, hidden_states: Any, emb: Any = None) -> Any:
    shift, factor, gate, shift_mlp, factor_mlp, gate_mlp, shift2, factor2, gate2 = self.linear(self.silu(emb)).chunk(
        9, dim=1
    )
    first = _modulated(self.norm, hidden_states, factor, shift)
    second = _modulated(self.norm, hidden_states, factor2, shift2)
    return first, gate, shift_mlp, factor_mlp, gate_mlp, second, gate2


@of_rows
def _continuous_forward(self: Any, x: Any, conditioning_embedding: Any) -> Any:
    factor, shift = self.linear(self.silu(conditioning_embedding).to(x.dtype)).chunk(2, dim=1)
    return _modulated(self.norm, x, factor, shift)


@of_rows
def _ada_forward(self: Any, x: Any, timestep: Any = None, temb: Any = None) -> Any:
    if self.chunk_dim != 1:
        return None
    temb = self.linear(self.silu(self.emb(timestep) if self.emb is not None else temb))
    shift, factor = temb.chunk(2, dim=1)
    return _modulated(self.norm, x, factor, shift)


@of_rows
def _cogvideox_forward(self: Any, hidden_states: Any, encoder_hidden_states: Any, temb: Any) -> Any:
    shift, factor, gate, shift_text, factor_text, gate_text = self.linear(self.silu(temb)).chunk(6, dim=1)
    rows = _modulated(self.norm, hidden_states, factor, shift)
    text = _modulated(self.norm, encoder_hidden_states, factor_text, shift_text)
    return rows, text, gate[:, None, :], gate_text[:, None, :]


@of_rows
def _lumina_forward(self: Any, x: Any, emb: Any = None) -> Any:
    factor, *others = self.linear(self.silu(emb)).chunk(4, dim=1)
    return _modulated(self.norm, x, factor, None), *others


def _rows_and_condition(module: Any) -> tuple[Any, ...]:
    rows = _rows_for(module.norm).to(module.linear.weight)
    if getattr(module, "emb", None) is not None:
        steps = torch.tensor([3, 700], device=rows.device)
        if isinstance(module, normalization.AdaLayerNormZero):
            return rows, steps, torch.tensor([0, 1], device=rows.device), rows.dtype
        return rows, torch.tensor([0, 1], device=rows.device)
    condition = normal(2, module.linear.in_features, like=module.linear.weight, seed=8)
    if isinstance(module, normalization.AdaLayerNorm):
        return rows, None, condition
    if isinstance(module, normalization.AdaLayerNormZero):
        return rows, None, None, None, condition
    return (
        (rows, rows + 1, condition) if isinstance(module, normalization.CogVideoXLayerNormZero) else (rows, condition)
    )


# ---- activations


@of_rows
def _silu_forward(self: Any, rows: torch.Tensor) -> Any:
    return _activated(self, rows, "silu")


@of_rows
def _gelu_forward(self: Any, rows: torch.Tensor) -> Any:
    return _activated(self, rows, "gelu_tanh" if self.approximate == "tanh" else "gelu")


def _activated(module: Any, rows: torch.Tensor, function: str) -> torch.Tensor | None:
    if getattr(module, "inplace", False) or not rows.is_contiguous():  # channels last stays so in torch's own code
        return None
    return _activation(rows, function)


@of_rows
def _projected_gelu_forward(self: Any, rows: torch.Tensor) -> Any:
    return _activation(self.proj(rows), "gelu_tanh" if self.approximate == "tanh" else "gelu")


@of_rows
def _quick_gelu_forward(self: Any, rows: torch.Tensor) -> Any:
    return _activation(self.proj(rows), "quick_gelu")


@of_rows
def _geglu_forward(self: Any, rows: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs.get("scale") is not None:
        return None
    up, gate = self.proj(rows).chunk(2, dim=-1)
    return _geglu(gate, up)


@of_rows
def _swiglu_forward(self: Any, rows: torch.Tensor) -> Any:
    up, gate = self.proj(rows).chunk(2, dim=-1)
    return _swiglu(gate, up)


def _plain_rows(_: Any) -> tuple[Any, ...]:
    return (4 * normal(2, 3, 64),)


def _projected_rows(module: Any) -> tuple[Any, ...]:
    return (4 * normal(2, 3, module.proj.in_features, like=module.proj.weight),)


_NORM, _LAYER, _ADA = "norm.rms", "norm.layer", _rows_and_condition
SERVED: dict[type, Served] = {
    nn.LayerNorm: Served("LayerNorm", _LAYER, _norm_forward, _norm_inputs),
    normalization.FP32LayerNorm: Served("LayerNorm", _LAYER, _norm_forward, _norm_inputs),
    nn.RMSNorm: Served("RMSNorm", _NORM, _norm_forward, _norm_inputs),
    normalization.RMSNorm: Served("RMSNorm", _NORM, _norm_forward, _norm_inputs),
    normalization.MochiRMSNorm: Served("RMSNorm", _NORM, _norm_forward, _norm_inputs),
    normalization.AdaLayerNorm: Served("AdaLayerNorm", _LAYER, _ada_forward, _ADA),
    normalization.AdaLayerNormZero: Served("AdaLayerNormZero", _LAYER, _zero_forward, _ADA),
    normalization.AdaLayerNormZeroSingle: Served("AdaLayerNormZero", _LAYER, _zero_single_forward, _ADA),
    normalization.SD35AdaLayerNormZeroX: Served("AdaLayerNormZero", _LAYER, _zero_x_forward, _ADA),
    normalization.AdaLayerNormContinuous: Served("AdaLayerNormContinuous", _LAYER, _continuous_forward, _ADA),
    normalization.CogVideoXLayerNormZero: Served("AdaLayerNormZero", _LAYER, _cogvideox_forward, _ADA),
    normalization.LuminaRMSNormZero: Served("AdaRMSNorm", _NORM, _lumina_forward, _ADA),
    nn.SiLU: Served("SiLU", "activation", _silu_forward, _plain_rows),
    activations.FP32SiLU: Served("SiLU", "activation", _silu_forward, _plain_rows),
    nn.GELU: Served("GELU", "activation", _gelu_forward, _plain_rows),
    activations.GELU: Served("GELU", "activation", _projected_gelu_forward, _projected_rows),
    activations.ApproximateGELU: Served("GELU", "activation", _quick_gelu_forward, _projected_rows),
    activations.GEGLU: Served("GEGLU", "activation.geglu", _geglu_forward, _projected_rows),
    activations.SwiGLU: Served("SwiGLU", "activation.swiglu", _swiglu_forward, _projected_rows),
}
_PLAIN_NORMS = {kind for kind, served in SERVED.items() if served.forward is _norm_forward}
# Classes that look like the ones above, and why they stay; of these the report has one line for all.
UNSERVED: dict[type, str] = {
    nn.GroupNorm: "no operation of LayerZero normalises groups of channels",
    nn.Conv2d: "torch's own convolution: LayerZero's operation is a reference for it",
    nn.Linear: "torch's own product: its kernels are LayerZero's too",
    normalization.AdaGroupNorm: "no operation of LayerZero normalises groups of channels",
    normalization.GlobalResponseNorm: "no operation of LayerZero divides by the mean over channels",
    normalization.LpNorm: "no operation of LayerZero divides by a norm of rows alone",
    normalization.LuminaLayerNormContinuous: "its modulation is followed by a second linear layer of its own",
    nn.Mish: "no operation of LayerZero computes Mish",
}
_ONE_LAUNCH = {nn.SiLU, nn.GELU, activations.GELU}


def left_to_torch(kind: type, device: str) -> str | None:
    """Why all modules of a class stay as they are on a device, or None."""
    if device == "cuda" and kind in _ONE_LAUNCH:
        return "torch's own function: on a CUDA device it is the kernel of LayerZero's operation too"
    return UNSERVED.get(kind)


@torch.no_grad()
def why_not(module: Any, served: Served) -> str | None:
    """None if the operation computes what a module's own code does, or why the module stays as it is."""
    reason = why_not_plain(module)
    if reason is not None:
        return reason
    if getattr(module, "inplace", False):
        return "writes into its input"
    if getattr(module, "chunk_dim", 1) != 1:
        return "its modulation is one of columns for all samples"
    if served.inputs is _rows_and_condition and not _is_foldable(module.norm):
        return "its norm is none of those that the operation computes, or has hooks"
    tried = module
    held = next(module.parameters(), None)
    if held is not None and held.dtype in (torch.bfloat16, torch.float16) and not isinstance(module, _LARGE):
        tried = copy.deepcopy(module).float()  # numbers that tell more kinds apart
    given = served.inputs(tried)
    try:
        expected = type(module).forward(tried, *given)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"its own code does not run on a small input: {first_line(error)}"
    calls = tried.__dict__["_layerzero_part"] = {"calls": 0}
    try:
        actual = served.forward(tried, *given)
    except LayerZeroError as error:
        return f"the operation refuses its rows: {first_line(error)}"
    finally:
        tried.__dict__.pop("_layerzero_part")
    if not calls["calls"]:
        return f"the operation {served.operation} does not take its rows"
    return None if agrees(actual, expected) else f"computes something else than {served.operation}"


_LARGE = (activations.GELU, activations.GEGLU, activations.SwiGLU, activations.ApproximateGELU, nn.Linear)
