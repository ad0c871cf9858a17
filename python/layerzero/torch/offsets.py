"""Offsets of packed sequences whose values their owner has on the host: kernels that know them need not guard the device's.

An engine makes offsets on the host and copies them once a step, for all layers. Without their values an adapter makes valid ones
on the device in each call, which costs the host more time than a library's call itself.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary


class Known(NamedTuple):
    """The last offset, the length of the longest sequence, and torch's count of writes (None: an inference tensor)."""

    last: int
    longest: int
    version: int | None


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _version(offsets: torch.Tensor) -> int | None:
    return None if offsets.is_inference() else offsets._version


def declare(offsets: torch.Tensor, host: Sequence[int]) -> None:
    """Says what int32 `offsets` (n + 1) hold, as long as this tensor object lives and nobody writes into it; `host`: the
    values. Values that are no offsets are forgotten: calls with them are guarded as ever."""
    lengths = [end - begin for begin, end in pairwise(host)]
    if not lengths or len(host) != offsets.shape[0] or host[0] or min(lengths) < 0:
        _known.pop(offsets, None)
        return
    _known[offsets] = Known(int(host[-1]), int(max(lengths)), _version(offsets))


def known(offsets: torch.Tensor) -> Known | None:
    """What was declared, if it is still so. Nothing inside of a CUDA graph's capture, which serves other values too."""
    found = _known.get(offsets)
    if found is None or found.version != _version(offsets):
        return None
    return None if offsets.is_cuda and torch.cuda.is_current_stream_capturing() else found
