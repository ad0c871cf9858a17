"""FlashInfer's plans: made from values of index tables on the host, kept while those values are current.

A plan divides the work of a call among thread blocks, from lengths that it reads on the host: 85 to 600 us of host time (H200),
plus the time until the device has computed the tables, if they are in its memory. No adapter reads them there. `know`
does, called by the creator of the tables; until then, and after a counted write into a table, the kernels refuse.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from layerzero.errors import KernelRefusedError

WORKSPACE = 128 << 20  # bytes, as FlashInfer advises
MOST = 16  # plans kept; each takes 8 MiB on the device and as much pinned memory on the host


class Known(NamedTuple):
    """The values of an index tensor."""

    host: torch.Tensor  # int32
    device: torch.Tensor  # int32, a separate copy
    version: int | None  # torch's count of writes; None: an inference tensor, whose writes torch does not count


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
_plans: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
_workspaces: dict[Any, torch.Tensor] = {}


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def know(*tables: torch.Tensor) -> None:
    """Reads index tensors, which waits for the device, so that kernels with plans can serve calls with these tensors.

    Call it again after a write into one of them: where torch counts writes (not of inference tensors, not of writes by
    address) a forgotten call is noticed and the kernels refuse.
    """
    for table in tables:
        copy = table.detach().to(torch.int32, copy=True)
        _known[table] = Known(copy.cpu(), copy, _version(table))


def known(name: str, table: torch.Tensor) -> Known:
    found = _known.get(table)
    if found is None or found.version != _version(table):
        why = "are not known on the host" if found is None else "were written since they were read"
        raise KernelRefusedError(
            f"{name}: its values {why}, and FlashInfer plans with them; call layerzero.backends.flashinfer.plans.know"
        )
    return found


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def workspace(device: torch.device, size: int = WORKSPACE) -> torch.Tensor:
    """Returns bytes that kernels of one stream share, initially zero."""
    key = (device, _stream(device), size)
    found = _workspaces.get(key)
    if found is None:
        found = torch.zeros(size, dtype=torch.uint8, device=device)
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return found  # its memory is the graph's
        _workspaces[key] = found
    return found


def planned(key: Any, tables: tuple[Known, ...], device: torch.device, make: Callable[[torch.Tensor], Any]) -> Any:
    """Returns `make(workspace)`, a planned wrapper, cached under `key`, the tables' identity and the stream."""
    whole = (key, tuple(id(table) for table in tables), device, _stream(device))
    if whole in _plans:
        _plans.move_to_end(whole)
        return _plans[whole][0]
    made = make(workspace(device))
    _plans[whole] = (made, tables)  # objects whose id is in the key must stay alive
    if len(_plans) > MOST:
        _plans.popitem(last=False)
    return made
