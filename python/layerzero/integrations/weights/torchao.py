"""torchao: torch.nn.Linear whose weight is a subclass of Tensor that holds codes (n, k), scales and zeros by blocks."""

from typing import Any

import torch
from torch import nn

from layerzero.integrations.weights import codes

_FLOAT8 = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}
_READ = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")


def read(layer: nn.Module) -> codes.Layout | str | None:
    weight: Any = layer._parameters.get("weight")
    kind = type(weight)
    if type(layer) is not nn.Linear or not kind.__module__.startswith("torchao."):
        return None
    reason = _why_not(weight)
    if reason:
        return f"weight is a {kind.__name__}: {reason}"
    rows, columns = _block(weight)
    what = f"{_bits(weight)} bits by {columns}" if columns < weight.shape[1] else f"{_bits(weight)} bits by row"
    return codes.Layout(
        "torchao",
        what if rows == 1 else f"{_bits(weight)} bits by {rows} rows of {columns}",
        lambda: _sources(layer._parameters["weight"]),
        lambda: [_unpack(weight)],
        weight.dequantize,
    )


def _why_not(weight: Any) -> str | None:
    if type(weight).__name__ not in _READ:
        return "its layout is that of its own kernels"
    for name in ("act_quant_kwargs", "activation_quantization"):
        if getattr(weight, name, None) is not None:
            return f"its products round what is multiplied too ({name})"
    if getattr(weight, "act_pre_scale", None) is not None:
        return "it scales what is multiplied (act_pre_scale)"
    if weight.qdata.dim() != 2 or weight.dtype not in codes.FLOATS:
        return f"it has {weight.qdata.dim()} axes of {weight.dtype}"
    rows, columns = _block(weight)
    if weight.shape[0] % rows or weight.shape[1] % columns or (_bits(weight) == 4 and weight.shape[1] % 2):
        return f"blocks of {rows} by {columns} do not divide {list(weight.shape)}"
    if weight.qdata.dtype not in (torch.int8, *_FLOAT8):
        return f"its codes are {weight.qdata.dtype}"
    zeros = getattr(weight, "zero_point", None)
    return None if zeros is None or codes.whole(zeros.float()) else "its zeros are no integers"


def _block(weight: Any) -> tuple[int, int]:
    """Rows and columns that share a scale; torchao writes -1 for all of an axis."""
    sizes = weight.block_size or weight.shape
    rows, columns = (size if each < 0 else each for each, size in zip(sizes, weight.shape, strict=True))
    return rows, columns


def _bits(weight: Any) -> int:
    """8, or 4 where the type of the codes has so few values."""
    return (
        4 if str(getattr(weight, "target_dtype", "")) in ("torch.int1", "torch.int2", "torch.int3", "torch.int4") else 8
    )


def _sources(weight: Any) -> tuple[torch.Tensor, ...]:
    zeros = getattr(weight, "zero_point", None)
    return (weight.qdata, weight.scale) if zeros is None else (weight.qdata, weight.scale, zeros)


def _unpack(weight: Any) -> codes.QuantizedWeight:
    rows, columns = _block(weight)
    shape = (weight.shape[0] // rows, weight.shape[1] // columns)
    data, scales = weight.qdata.detach(), weight.scale.detach().reshape(shape)
    if data.dtype in _FLOAT8:
        return codes.QuantizedWeight(_FLOAT8[data.dtype], data, scales)
    zeros = getattr(weight, "zero_point", None)
    zeros = None if zeros is None or not zeros.any() else zeros.detach().reshape(shape).to(torch.int32)
    if _bits(weight) == 4:
        return codes.QuantizedWeight("int4", codes.half_bytes(data).contiguous(), scales, zeros)
    return codes.QuantizedWeight("int8", data, scales, zeros)
