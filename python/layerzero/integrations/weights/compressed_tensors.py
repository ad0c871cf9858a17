"""compressed-tensors: torch.nn.Linear with a `quantization_scheme` and a forward of the library's.

Transformers loads the packed codes, and the model's first call replaces them by a weight of floating point numbers, each
(code - zero) * scale; the scales stay. The codes are what those numbers are over their scales.
"""

import contextlib
from typing import Any

import torch
from torch import nn

from layerzero.integrations.weights import codes


def unpack_as_a_call_would(model: nn.Module) -> None:
    """Does for every model within `model` what its first call would do first: a hook of the library unpacks all weights, and
    removes itself.
    """
    for part in list(model.modules()):
        handle = part.__dict__.get("ct_decompress_hook")
        hook = part._forward_pre_hooks.get(getattr(handle, "id", -1))
        if hook is not None:
            # Where the hook fails its layers stay packed, for which `read` has a reason; the model's own call says the rest.
            with contextlib.suppress(Exception), torch.inference_mode(False), torch.no_grad():
                hook(part, ())


def read(layer: nn.Module) -> codes.Layout | str | None:
    scheme: Any = getattr(layer, "quantization_scheme", None)
    if type(layer) is not nn.Linear or scheme is None or not _is_theirs(layer.__dict__.get("forward")):
        return None
    called = "compressed-tensors"
    reason = _why_not(layer, scheme)
    if reason:
        return f"{called}: {reason}"
    weight = layer._parameters["weight"]
    assert weight is not None
    columns = weight.shape[1] // _grid(layer)[1]
    return codes.Layout(
        called,
        f"{scheme.weights.num_bits} bits by {columns}"
        if columns < weight.shape[1]
        else f"{scheme.weights.num_bits} bits by row",
        lambda: _sources(layer),
        lambda: [_unpack(layer, scheme.weights)],
        lambda: layer._parameters["weight"],  # type: ignore[arg-type, return-value]
        sets_forward=True,
    )


def _is_theirs(forward: Any) -> bool:
    function = getattr(forward, "__func__", None)
    return function is not None and function.__globals__["__name__"].startswith("compressed_tensors.")


def _why_not(layer: nn.Module, scheme: Any) -> str | None:
    if scheme.input_activations is not None or scheme.output_activations is not None:
        return "its products round what is multiplied too (activations of the scheme)"
    if scheme.weights is None or not getattr(layer, "quantization_enabled", True):
        return "its weight is not quantized"
    weight, scales = (layer._parameters.get(name) for name in ("weight", "weight_scale"))
    if weight is None or weight.dtype not in codes.FLOATS:
        return "its weight is packed until the model's first call: call the model once before"
    if scales is None or scales.dtype not in codes.FLOATS or hasattr(layer, "weight_global_scale"):
        return "its scales are of a format with scales of scales"
    kind, bits = getattr(scheme.weights.type, "value", scheme.weights.type), scheme.weights.num_bits
    if not (kind == "int" and 1 <= bits <= 8) and (kind, bits) != ("float", 8):
        return f"codes of {bits} bits ({kind}): kernels take integers of up to 8 and FP8"
    if getattr(layer, "weight_g_idx", None) is not None:
        return "its groups are not of adjacent columns (actorder)"
    rows, columns = _grid(layer)
    if weight.shape[0] % rows or weight.shape[1] % columns or (bits <= 4 and weight.shape[1] % 2):
        return f"{rows} by {columns} scales do not divide {list(weight.shape)}"
    return None


def _grid(layer: nn.Module) -> tuple[int, int]:
    """Rows and columns of the scales."""
    scales = layer._parameters["weight_scale"]
    assert scales is not None
    return (scales.shape[0], scales.shape[1]) if scales.dim() == 2 else (scales.numel(), 1)


def _sources(layer: nn.Module) -> tuple[torch.Tensor, ...]:
    found = [layer._parameters.get(name) for name in ("weight", "weight_scale", "weight_zero_point")]
    return tuple(each for each in found if each is not None)


def _unpack(layer: nn.Module, scheme: Any) -> codes.QuantizedWeight:
    weight, scales, *zeros = (each.detach() for each in _sources(layer))
    grid, (n, k) = _grid(layer), weight.shape
    scales = scales.reshape(grid)
    blocks = weight.float().reshape(grid[0], n // grid[0], grid[1], k // grid[1])
    factors = scales.float()[:, None, :, None]
    numbers = (blocks / torch.where(factors == 0, torch.ones_like(factors), factors)).reshape(n, k)
    if getattr(scheme.type, "value", scheme.type) == "float":
        return codes.QuantizedWeight("fp8_e4m3", numbers.to(torch.float8_e4m3fn), scales)
    offsets = zeros[0].reshape(grid).to(torch.int32) if zeros and zeros[0].any() else None
    integers = numbers.round()
    if offsets is not None:
        spread = offsets.repeat_interleave(n // grid[0], 0).repeat_interleave(k // grid[1], 1)
        integers = integers + spread
    integers = integers.clamp(-128, 127).to(torch.int8)
    if scheme.num_bits <= 4:
        return codes.QuantizedWeight("int4", codes.half_bytes(integers).contiguous(), scales, offsets)
    return codes.QuantizedWeight("int8", integers, scales, offsets)
