"""FlashInfer's plans: made from values of index tables on the host, kept while those values are current.

A plan divides the work of a call among thread blocks, from lengths that it reads on the host: 85 to 600 us of host time (H200),
plus the time until the device has computed the tables, if they are in its memory. No adapter reads them there.
`layerzero.read_tables` does, called by the owner of the tables; KVCacheManager, which has the values on the host, passes them
without a wait. Until then, and after a counted write into a table, the kernels refuse.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary

from layerzero.backends.availability import missing
from layerzero.errors import CudaGraphUnsafeError, InvalidRequestError, KernelRefusedError

WORKSPACE = 128 << 20  # bytes, as FlashInfer advises
MOST = 16  # plans kept; each takes 8 MiB on the device and as much pinned memory on the host


class Known(NamedTuple):
    """The values of an index tensor."""

    host: torch.Tensor  # int32
    device: torch.Tensor  # int32, a separate copy: a write that nobody noticed must not change what was checked
    version: int | None  # torch's count of writes; None: an inference tensor, whose writes torch does not count


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()
_plans: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
_workspaces: dict[Any, torch.Tensor] = {}


def wanted() -> bool:
    """Returns whether a library is installed whose kernels plan with tables."""
    return not missing([{"import": "flashinfer"}])


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def read_tables(*tables: torch.Tensor) -> None:
    """Reads index tables to the host, for kernels that plan with their values (FlashInfer's over packed and paged tensors).

    tables: int32 or int64 tensors that calls will be given: kv_indptr, kv_indices, kv_last_page_len, qo_indptr,
    cu_seqlens_q, cu_seqlens_kv. It waits for the device; one call serves all layers of a step, because the plans are kept
    with the tensors. Call it again after a write into one of them: where torch counts writes (not of inference tensors,
    not of writes by address) a forgotten call is noticed and those kernels refuse. Tables of a KVCacheManager need no such call.
    Raises CudaGraphUnsafeError inside a capture, InvalidRequestError for other values.
    """
    for table in tables:
        if not isinstance(table, torch.Tensor) or table.dtype not in (torch.int32, torch.int64):
            got = table.dtype if isinstance(table, torch.Tensor) else type(table).__name__
            raise InvalidRequestError("read_tables", "int32 or int64 tensors", str(got), "pass index tables")
        if table.is_cuda and torch.cuda.is_current_stream_capturing():
            where = "a call outside of captures, because it waits for the device"
            raise CudaGraphUnsafeError("read_tables", where, "a capture", "call it before the capture")
        given(table, table.detach().cpu().to(torch.int32, copy=True))


def given(table: torch.Tensor, host: torch.Tensor) -> None:
    """Keeps the values of a table, int32 on the host, unless they are kept already. Nobody may write into `host`."""
    found = _known.get(table)
    if found is not None and found.version == _version(table) and torch.equal(found.host, host):
        return  # its plans stay valid
    _known[table] = Known(host, table.detach().to(torch.int32, copy=True), _version(table))


def known(name: str, table: torch.Tensor) -> Known:
    found = _known.get(table)
    if found is None or found.version != _version(table):
        why = "are not known on the host" if found is None else "were written since they were read"
        raise KernelRefusedError(
            f"{name}: its values {why}, and FlashInfer plans with them; call layerzero.read_tables"
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
