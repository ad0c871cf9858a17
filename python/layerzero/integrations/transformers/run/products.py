"""Products of the linear layers of a decoder that runs by calls: those with one input are one, where their weights are side by side."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from layerzero import _layerzero

_linear = _layerzero.ops["linear"]
_GIVEN_BACK = 1 << 30  # bytes of weights that were moved, after which the allocator returns the old ones


class Products:
    """How a plan's linear layers are multiplied. kernel: of all products with parameters; None: what a call selects."""

    def __init__(self, plan: Any, kernel: str | None = None) -> None:
        self.plan, self.kernel = plan, kernel
        self.found: dict[tuple[int, ...], Any] = {}

    def multiply(self, rows: torch.Tensor, table: Any) -> torch.Tensor:
        if self.kernel is None or (self.plan.linears and self.plan.blocks(table) is not None):
            product: torch.Tensor = self.plan.multiply(rows, table)
            return product
        return _linear(rows, table["weight"], table["bias"], kernel=self.kernel)

    def together(self, rows: torch.Tensor, tables: Sequence[Any]) -> Sequence[torch.Tensor] | None:
        """The products of several linear layers with one input, as columns of one; None where they are not one."""
        key = tuple(map(id, tables))
        if key not in self.found:
            self.found[key] = self._one(tables)
        one = self.found[key]
        if one is None:
            return None
        weight, bias, sizes = one
        named = {} if self.kernel is None else {"kernel": self.kernel}
        columns: Sequence[torch.Tensor] = _linear(rows, weight, bias, **named).split(sizes, -1)
        return columns

    def _one(self, tables: Sequence[Any]) -> Any:
        if len(tables) < 2 or any(self.plan.blocks(table) is not None for table in tables):
            return None
        weight = side_by_side([table["weight"] for table in tables])
        biases = [table["bias"] for table in tables]
        bias = None if any(each is None for each in biases) else side_by_side(biases)
        if weight is None or (bias is None and any(each is not None for each in biases)):
            return None
        return weight, bias, [table["weight"].shape[0] for table in tables]


def side_by_side(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The tensor of which the given ones are the rows, in their order, without a copy; None where they are not."""
    first = tensors[0].detach()
    at, rows = first.data_ptr(), 0
    for tensor in tensors:
        alike = tensor.dtype == first.dtype and tensor.shape[1:] == first.shape[1:] and tensor.is_contiguous()
        if not alike or tensor.data_ptr() != at or _storage(tensor) != _storage(first):
            return None
        at, rows = at + tensor.nbytes, rows + tensor.shape[0]
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def put_together(groups: Iterable[Sequence[Parameter]]) -> bool:
    """Moves the parameters of each group to one memory, where they follow one another: they stay views of their own. A group
    stays where it is if a parameter shares its memory with something, or if there is no memory for the move. Returns whether
    one was moved."""
    moved, all_moved = 0, 0
    for group in groups:
        if side_by_side(group) is not None or not all(map(_is_alone, group)) or not _are_alike(group):
            continue
        try:
            size = _move(group)
        except torch.OutOfMemoryError:
            break
        moved, all_moved = moved + size, all_moved + size
        if moved >= _GIVEN_BACK and group[0].is_cuda:  # what is left fits no larger one
            torch.cuda.empty_cache()
            moved = 0
    if moved and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return all_moved > 0


def _move(group: Sequence[Parameter]) -> int:
    """Returns the bytes that were moved."""
    sizes = [parameter.shape[0] for parameter in group]
    with torch.inference_mode(group[0].is_inference()), torch.no_grad():
        memory = group[0].new_empty(sum(sizes), *group[0].shape[1:])
        for parameter, own in zip(group, memory.split(sizes), strict=True):
            own.copy_(parameter)
            parameter.data = own
    return memory.nbytes


def put_apart(groups: Iterable[Sequence[Parameter]]) -> None:
    """Undoes `put_together`: each parameter has memory of its own."""
    for group in groups:
        if len(group) > 1 and side_by_side(group) is not None:
            with torch.inference_mode(group[0].is_inference()), torch.no_grad():
                for parameter in group:
                    parameter.data = parameter.detach().clone()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_alone(parameter: Parameter) -> bool:
    """Whether the memory is this parameter's alone. What holds a view of it would not see later writes."""
    storage = parameter.untyped_storage()
    if type(parameter) is not Parameter or not parameter.is_contiguous() or storage.nbytes() != parameter.nbytes:
        return False
    return torch._C._storage_Use_Count(storage._cdata) <= 2  # the parameter's and this storage's  # type: ignore[attr-defined]


def _are_alike(group: Sequence[Parameter]) -> bool:
    return len({(p.dtype, p.device, p.shape[1:], p.is_inference()) for p in group}) == 1
