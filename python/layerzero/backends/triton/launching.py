"""How the kernels of this folder are compiled: in two forms; a call's kind says which one it needs.

Triton compiles a function again where an address is a multiple of 16 bytes, a whole number is 1, or a multiple of 16, or
does not fit 32 bits. A kernel must not be compiled in a call for such a reason, so its numbers have a type and no
specialization, and its rows in capabilities.json name in `jit.key` everything else that the compiled code depends on.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

ALIGNMENT = 16  # bytes that one instruction reads at most


class Kernel:
    """A function in Triton's language. Parameters without an annotation are addresses; `free` are those that may be any in
    both forms."""

    def __init__(self, function: Callable[..., None], free: tuple[str, ...] = ()):
        kinds = {name: p.annotation for name, p in inspect.signature(function).parameters.items()}
        numbers = [name for name, kind in kinds.items() if kind in (tl.int32, tl.int64)]
        addresses = [name for name, kind in kinds.items() if kind is inspect.Parameter.empty]
        self._aligned = triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=list(free))
        self._others = triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=addresses)

    def run(self, blocks: int, aligned: bool, /, *values: Any, warps: int, stages: int = 2, **constants: Any) -> None:
        """Launches it. aligned: all addresses but free ones are multiples of ALIGNMENT, in every call of the kind."""
        form = self._aligned if aligned else self._others
        form[(blocks,)](*values, **constants, num_warps=warps, num_stages=stages)


def are_aligned(width: int, *tensors: Any) -> bool:
    """Returns whether rows of `width` elements of the first tensor, and the addresses of all, are multiples of ALIGNMENT: for
    dense tensors this follows from the width, `<tensor>.alignment >= 4` and, since what is not dense is copied,
    `<tensor>.contiguous`."""
    if width * tensors[0].element_size() % ALIGNMENT:
        return False
    return not any(tensor is not None and tensor.data_ptr() % ALIGNMENT for tensor in tensors)


def warps_of(block: int) -> int:
    """Returns how many warps hold `block` elements in registers: 16 elements of each thread, more in very wide rows."""
    return min(max(block // 512, 1), 32)


def power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
