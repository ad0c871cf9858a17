"""Products of the linear layers of a decoder that runs by calls: layers with the same input are one product if their weights
are adjacent in memory."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import Parameter
from torch.utils.dlpack import to_dlpack

from layerzero import _layerzero
from layerzero.integrations.transformers.run import variants
from layerzero.integrations.transformers.run.variants import Variant

_linear = _layerzero.ops["linear"]
_GIVEN_BACK = 1 << 30  # bytes of weights that were moved, after which the allocator returns the old ones
_moved: dict[int, StorageWeakRef] = {}  # address of each parameter that was moved -> the memory of its group


class _Rows(NamedTuple):
    """Tensors that are adjacent in memory, as one tensor. It does not keep the memory alive; the tensors do."""

    memory: StorageWeakRef
    dtype: torch.dtype
    offset: int  # in elements
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def tensor(self) -> torch.Tensor | None:
        """The tensor; None if the memory was freed."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.memory.cdata)
        if storage is None:
            return None
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)


class Products:
    """How a plan's linear layers are multiplied. kernels: those of products with parameters, see `variants`."""

    def __init__(self, plan: Any, kernels: Variant | None = None) -> None:
        self.plan, self.kernels = plan, kernels or {}
        self.found: dict[tuple[int, ...], Any] = {}
        self.parts: dict[str, None] = {}  # what was multiplied, as parts of a variant

    def multiply(self, rows: torch.Tensor, table: Any) -> torch.Tensor:
        if self.plan.linears and self.plan.blocks(table) is not None:
            product: torch.Tensor = self.plan.multiply(rows, table)
            return product
        return self._product(rows, table["weight"], table["bias"])

    def _product(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        part = variants.product(*weight.shape)
        self.parts[part] = None
        kernel = self.kernels.get(part) or self.kernels.get(variants.PRODUCTS, variants.SELECTED)
        return (
            _linear(rows, weight, bias) if kernel == variants.SELECTED else _linear(rows, weight, bias, kernel=kernel)
        )

    def together(self, rows: torch.Tensor, tables: Sequence[Any]) -> Sequence[torch.Tensor] | None:
        """The products of several linear layers with the same input, as columns of one product; None if they cannot be one."""
        if not _layerzero.programs_may_run():  # a torch mode would see the tensors that are made here
            return None
        key = tuple(map(id, tables))
        if key not in self.found:
            self.found[key] = self._one(tables)
        if self.found[key] is None:
            return None
        one, its_bias, sizes = self.found[key]
        weight, bias = one.tensor(), None if its_bias is None else its_bias.tensor()
        if weight is None or (bias is None and its_bias is not None):
            return None
        columns: Sequence[torch.Tensor] = self._product(rows, weight, bias).split(sizes, -1)
        return columns

    def _one(self, tables: Sequence[Any]) -> Any:
        if len(tables) < 2 or any(self.plan.blocks(table) is not None for table in tables):
            return None
        weight = _rows([table["weight"] for table in tables])
        biases = [table["bias"] for table in tables]
        bias = None if any(each is None for each in biases) else _rows(biases)
        if weight is None or (bias is None and any(each is not None for each in biases)):
            return None
        return weight, bias, [table["weight"].shape[0] for table in tables]


def side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One tensor with the rows of the given ones, without a copy; None if they are not adjacent in memory."""
    found = _rows(tensors)
    return None if found is None else found.tensor()


def _rows(tensors: Sequence[torch.Tensor]) -> _Rows | None:
    first, storages = tensors[0], [tensor.untyped_storage() for tensor in tensors]
    start = at = first.data_ptr()
    for tensor in tensors:
        alike = (tensor.dtype, tensor.device, tensor.shape[1:]) == (first.dtype, first.device, first.shape[1:])
        if not alike or not tensor.is_contiguous() or tensor.data_ptr() != at:
            return None
        at += tensor.nbytes
    memory = StorageWeakRef(storages[0])
    if len({storage.data_ptr() for storage in storages}) > 1:
        found = _moved.get(start)
        if found is None:
            return None
        memory = found
    storage = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
    if storage is None or at > storage.data_ptr() + storage.nbytes():
        return None
    offset = (start - storage.data_ptr()) // first.element_size()
    shape = sum(tensor.shape[0] for tensor in tensors), *first.shape[1:]
    return _Rows(memory, first.dtype, offset, shape, first.stride())


def put_together(groups: Iterable[Sequence[Parameter]]) -> bool:
    """Moves the parameters of each group to one memory, where they follow one another, each with a storage of its own. A group
    stays where it is if a parameter shares its storage with something, or if there is no memory for the move; all stay while
    a torch mode sees each call. Returns whether one was moved."""
    if not _layerzero.programs_may_run():
        return False
    for address in [address for address, memory in _moved.items() if memory.expired()]:
        del _moved[address]
    moved, all_moved, first = 0, 0, None
    for group in groups:
        if _rows(group) is not None or not all(map(_is_alone, group)) or not _are_alike(group):
            continue
        if first is None:
            first = group[0]
            _wait_for(first)  # other streams may read the weights where they are
        try:
            size = _move(group)
        except torch.OutOfMemoryError:
            break
        moved, all_moved = moved + size, all_moved + size
        if moved >= _GIVEN_BACK and group[0].is_cuda:  # what is left fits no larger one
            torch.cuda.empty_cache()
            moved = 0
    if first is not None:
        _wait_for(first)  # other streams may read them where they are now
    if moved and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return all_moved > 0


def _wait_for(parameter: Parameter) -> None:
    if parameter.is_cuda:
        torch.cuda.synchronize(parameter.device)


def _move(group: Sequence[Parameter]) -> int:
    """Moves the parameters of a group; returns the number of bytes."""
    sizes = [parameter.nbytes for parameter in group]
    with torch.inference_mode(group[0].is_inference()), torch.no_grad():
        memory = torch.empty(sum(sizes), dtype=torch.uint8, device=group[0].device)
        kept = StorageWeakRef(memory.untyped_storage())
        for parameter, part in zip(group, memory.split(sizes), strict=True):
            # Views of one storage would be one tensor with several names to what saves a model. As bytes, since DLPack does not
            # have each dtype; as a capsule, which knows nothing of streams.
            own = torch.from_dlpack(to_dlpack(part)).view(parameter.dtype).view(parameter.shape)
            own.copy_(parameter)
            parameter.data = own
            _moved[own.data_ptr()] = kept
    return memory.nbytes


def put_apart(parameters: Iterable[Parameter]) -> None:
    """Undoes `put_together`: each of these parameters that is where it was moved to gets memory of its own. What shares its
    storage with something stays."""
    if not _layerzero.programs_may_run():
        return
    for parameter in parameters:
        memory = _moved.get(parameter.data_ptr())
        if memory is not None and not memory.expired() and _is_alone(parameter):
            with torch.inference_mode(parameter.is_inference()), torch.no_grad():
                parameter.data = parameter.detach().clone()


def _is_alone(parameter: Parameter) -> bool:
    """Whether no other tensor shares the parameter's storage: a view of it would not see later writes."""
    storage = parameter.untyped_storage()
    whole = parameter.is_contiguous() and 0 < parameter.nbytes == storage.nbytes()
    if type(parameter) is not Parameter or not whole:
        return False
    return torch._C._storage_Use_Count(storage._cdata) <= 2  # the parameter's and this storage's  # type: ignore[attr-defined]


def _are_alike(group: Sequence[Parameter]) -> bool:
    return len({(p.dtype, p.device, p.shape[1:], p.is_inference()) for p in group}) == 1
