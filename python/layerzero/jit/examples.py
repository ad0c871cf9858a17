"""Tensors that a call can be made with, from a description of the call: what a compilation runs on.

A description is what the engine's CallText makes (src/engine/jit.cpp): {"operation", "device", "layout", "tensors": {name:
{"dtype", "shape", "strides"}}, "scalars": {name: value}}. Numbers are 1; integers are 0, which is inside of every table.
Kernels that plan by offsets and lengths have something to plan: offsets of keys and pages split them evenly, each sequence has
one query and a last page of one key (so no query is without keys), and all tables are read to the host.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from layerzero.contracts.axes import Description

Call = Mapping[str, Any]
_OFFSETS = ("cu_seqlens", "indptr")  # parts of the names of tensors with offsets into rows
_QUERIES = ("cu_seqlens_q", "qo_indptr")  # the rows after the last sequence belong to none
_LENGTHS = ("_lens", "_len")


def text_of(call: Call) -> str:
    """Returns the call as a line that is the same for the same call."""
    return json.dumps(call, sort_keys=True, separators=(",", ":"))


def described(call: Call) -> dict[str, Any]:
    """Returns the arguments of the call by name, with descriptions in place of tensors: enough for a selection on the CPU."""
    tensors = {
        name: Description(t["dtype"], tuple(t["shape"]), tuple(t["strides"])) for name, t in call["tensors"].items()
    }
    return tensors | _options(call)


def arguments(call: Call) -> dict[str, Any]:
    """Returns the arguments of the call by name, tensors on its device. It waits for the device, if there are tables."""
    import torch

    from layerzero.backends.flashinfer.plans import read_tables

    with torch.no_grad():
        tensors = {name: tensor_like(t, call["device"], _filled(name, t, call)) for name, t in call["tensors"].items()}
        read_tables(*(t for t in tensors.values() if t.dtype in (torch.int32, torch.int64)))
    return tensors | _options(call)


def _options(call: Call) -> dict[str, Any]:
    layout = {"layout": call["layout"]} if call.get("layout") is not None else {}
    return {**call["scalars"], **layout}


def _filled(name: str, tensor: Mapping[str, Any], call: Call) -> int | range | None:
    """Returns the value of a tensor of integers, or its values; None: the default."""
    if not tensor["dtype"].startswith("int") or tensor["dtype"] == "int8":
        return None
    if any(part in name for part in _OFFSETS) and len(tensor["shape"]) == 1 and tensor["shape"][0] > 1:
        count = tensor["shape"][0] - 1
        rows = _rows(name, call)
        each = min(rows // count, 1) if name in _QUERIES else rows // count
        return range(0, count * each + 1, each) if each else None
    return 1 if name.endswith(_LENGTHS) else None


def _rows(name: str, call: Call) -> int:
    """Returns what offsets of this name count: rows of queries, rows of keys, listed pages."""
    tensors = call["tensors"]
    listed = "kv_indices" if "kv" in name else "indices" if name == "indptr" else "query"
    counted = listed if listed in tensors else "key" if "kv" in name and "key" in tensors else "query"
    return int(tensors[counted]["shape"][0]) if counted in tensors else 0


def tensor_like(facts: Mapping[str, Any], device: str, fill: int | range | None = None) -> Any:
    """Returns a tensor with the dtype, shape and strides of `facts`: filled with a value or with values, else with ones, or
    zeros for integers."""
    import torch

    dtype = getattr(torch, facts["dtype"])
    shape, strides = tuple(facts["shape"]), tuple(facts["strides"])
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if isinstance(fill, range):
        return (
            tensor.copy_(torch.tensor(list(fill), device=device)) if len(fill) == math.prod(shape) else tensor.zero_()
        )
    if fill is not None:
        return tensor.fill_(fill)
    if dtype.itemsize > 1 or dtype == torch.bool:
        return tensor.fill_(1 if dtype.is_floating_point else 0)
    return tensor.copy_(torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype))
