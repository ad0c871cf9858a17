"""Products with int8 and int4 weights by torch's weight-only kernels, which multiply unrounded activations.

int8: the weight is read as it is stored; the float32 sum of a row is multiplied by the row's scale.
int4: torch's kernels read an order of their own. A weight is packed at its first call, into a copy of half a byte for each
value that is kept as long as the tensor lives and packed again after a write. `packs` counts these copies.
"""

from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from layerzero.errors import KernelRefusedError
from layerzero.host import forks
from layerzero.torch.writes import Seen, are_counted

_K_TILES = 8  # tiles of 16 columns that are adjacent in the packed order of CUDA: loads of 16 bytes


def linear_int8(input, weight, weight_scale, format, bias, zero_point, tensor_scale, packed):
    """Rounds once: torch's own result in 16 bits is rounded before the bias, and on CPUs before the scale too."""
    n, k = weight.shape
    scale = weight_scale.float().expand(-1, n // weight_scale.shape[0]).reshape(n).contiguous()
    output = torch._weight_int8pack_mm(input.reshape(-1, k).float(), weight, scale)
    if bias is not None:
        output.add_(bias)
    return output.to(input.dtype).reshape(*input.shape[:-1], n)


class _Packed(NamedTuple):
    weight: Seen
    scale: Seen
    codes: torch.Tensor
    scales: torch.Tensor  # (groups, n, 2): each scale, and the value of the code 8, which is 0


packs = 0  # weights that this process has packed
_kept: Any = WeakTensorKeyDictionary()
_guard = forks.lock()


def linear_int4(input, weight, weight_scale, format, bias, zero_point, tensor_scale, packed):
    rows = input.reshape(input.shape[:-1].numel(), input.shape[-1]).contiguous()
    kept = _packed(weight, weight_scale)
    group = rows.shape[1] // weight_scale.shape[1]
    function = torch.ops.aten._weight_int4pack_mm if input.is_cuda else torch.ops.aten._weight_int4pack_mm_for_cpu
    output = function(rows, kept.codes, group, kept.scales)
    return output.reshape(*input.shape[:-1], weight.shape[0])


def _packed(weight, scale) -> _Packed:
    with _guard:
        kept = _kept.get(weight)
        if kept is not None and kept.weight.is_same(weight) and kept.scale.is_same(scale):
            return kept
        if not are_counted(weight) or not are_counted(scale):
            raise KernelRefusedError(
                "linear_quantized: wanted a weight and scales whose writes torch counts, got an inference tensor; "
                "copy it under torch.inference_mode(False)"
            )
        if weight.is_cuda and torch.cuda.is_current_stream_capturing():
            raise KernelRefusedError(
                "linear_quantized: wanted a weight that is packed, got one whose first call is captured; make the call "
                "once before the capture"
            )
        seen = Seen(weight), Seen(scale)  # before packing, so that a concurrent write is noticed
        with torch.inference_mode(False), torch.no_grad():
            kept = _Packed(*seen, *_pack(weight, scale))
        if weight.is_cuda:  # complete once it is kept: any stream may read it
            ready = torch.cuda.Event()
            ready.record(torch.cuda.current_stream(weight.device))
            ready.synchronize()
        _kept[weight] = kept
        global packs
        packs += 1
        return kept


def _pack(weight, scale):
    """torch's codes are those of int4 plus 8; on CUDA the even value of a byte is in its high half."""
    zeros = torch.zeros_like(scale)
    scales = torch.stack((scale.t(), zeros.t()), -1).contiguous()
    moved = weight.contiguous() ^ 0x88
    if weight.is_cuda:
        return torch.ops.aten._convert_weight_to_int4pack((moved << 4) | (moved >> 4), _K_TILES), scales
    codes = torch.stack((moved & 15, moved >> 4), -1).flatten(1).int()
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, _K_TILES), scales
