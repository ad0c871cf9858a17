"""A quantized weight in the layout of `linear_quantized`, and what the formats share to get there."""

import dataclasses
import sys
from collections.abc import Callable

import torch

from layerzero import _layerzero

_OPS = _layerzero.ops
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclasses.dataclass
class QuantizedWeight:
    """One weight of n rows and k columns, (code - zero) * scale.

    codes: (n, k) int8, uint8 or float8; of 4-bit formats (n, k / 2) uint8, the even element in the low half.
    scales: (rows of scales, columns of scales), each for a block. zeros: int32 of that shape, or None.
    """

    format: str
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None

    def values(self, dtype: torch.dtype) -> torch.Tensor:
        """The weight (n, k) in `dtype`, each value rounded once."""
        name = str(dtype).removeprefix("torch.")
        return _OPS["dequantize"](self.codes, self.scales, self.format, zero_point=self.zeros, dtype=name)

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """rows (..., k) times the weight, plus the bias (n) of their dtype."""
        return _OPS["linear_quantized"](rows, self.codes, self.scales, self.format, bias, zero_point=self.zeros)


@dataclasses.dataclass
class Layout:
    """What a format found in a layer.

    library: whose it is; what: for the report, such as "int4 by 128". sources: the tensors that are read, which a caller
    watches for changes. unpack: the weights that the layer may hold; several where the format leaves something open, such as
    GPTQ's two ways to store zeros, and the layer's own result decides. own: the weight (n, k) as the library's code has it,
    which the unpacked one has to equal bit for bit; None where the library has no code for it. sets_forward: whether the
    library sets a forward of its own on each layer, as no one else may.
    """

    library: str
    what: str
    sources: Callable[[], tuple[torch.Tensor, ...]]
    unpack: Callable[[], list[QuantizedWeight]]
    own: Callable[[], torch.Tensor] | None = None
    sets_forward: bool = False


def half_bytes(codes: torch.Tensor) -> torch.Tensor:
    """(n, k) integers of 4 bits -> (n, k / 2) uint8, the even element in the low half."""
    low = codes.to(torch.uint8) & 15
    return low[:, ::2] | low[:, 1::2] << 4


def columns_of_words(words: torch.Tensor, bits: int) -> torch.Tensor:
    """(rows, w) int32 -> (rows, w * 32 / bits) uint8: the fields of each word, the lowest bits first; 4 or 8 bits."""
    found = words.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack((found & 15, found >> 4), -1).flatten(1)


def symmetric(codes: torch.Tensor, bits: int, zeros: torch.Tensor) -> bool:
    """Whether all zeros are the middle of the unsigned range, so that the codes are two's complement but for their top bit."""
    return bool((zeros == 1 << (bits - 1)).all())


def unsigned(codes: torch.Tensor, bits: int, scales: torch.Tensor, zeros: torch.Tensor) -> QuantizedWeight:
    """The weight of unsigned codes in the layout of a kernel; without zeros where they are symmetric."""
    if symmetric(codes, bits, zeros):
        flipped = codes ^ (0x88 if bits == 4 else 0x80)
        return QuantizedWeight(
            "int4" if bits == 4 else "int8", flipped if bits == 4 else flipped.view(torch.int8), scales
        )
    return QuantizedWeight(f"uint{bits}", codes, scales, zeros.to(torch.int32).contiguous())


def why_not_bits(bits: float) -> str | None:
    return None if bits in (4, 8) else f"codes of {bits:g} bits: kernels take 4 and 8"


def why_not_this_machine() -> str | None:
    return None if sys.byteorder == "little" else "its words of 32 bits are read on little-endian machines"


def whole(values: torch.Tensor) -> bool:
    return bool((values == values.round()).all())
