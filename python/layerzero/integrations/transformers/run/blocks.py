"""A weight in packed GGUF blocks, and the product with it in place of that with a linear layer's parameter."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.program import ProgramBuilder, Rows
from layerzero.torch.writes import Seen, are_counted

_OPS = _layerzero.ops
BF16 = "bf16"  # a format in addition to those of GGUF's blocks
GROUP = 16  # rows that linear_gguf_prepack puts together


@dataclasses.dataclass
class BlockWeight:
    """One weight of n rows: GGUF blocks packed for the kernels, or bytes of bf16. The rows of a file are not kept.

    as_rows: the blocks are (n, row_bytes) as in a file, which the kernels of CUDA devices read.
    """

    packed: torch.Tensor
    format: str
    rows: int
    row_bytes: int
    as_rows: bool = False

    @staticmethod
    def of(data: torch.Tensor, format: str, columns: int) -> "BlockWeight":
        if _kept_as_rows(data):
            return BlockWeight(_aligned(data), format, data.shape[0], data.shape[1], as_rows=True)
        return BlockWeight(_OPS["linear_gguf_prepack"](data, columns, format), format, *data.shape)

    @staticmethod
    def rounded(weight: torch.Tensor) -> "BlockWeight":
        data = weight.to(torch.bfloat16).contiguous().view(torch.uint8)
        return BlockWeight(data, BF16, *data.shape)

    @property
    def data(self) -> torch.Tensor:
        """Returns the rows as a call takes them; of packed blocks only their number and size are read."""
        return self.packed if self.as_rows else _shape_alone(self.rows, self.row_bytes)

    @property
    def order(self) -> torch.Tensor | None:
        """Returns the argument `packed` of a call."""
        return None if self.as_rows else self.packed

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes


def _kept_as_rows(data: torch.Tensor) -> bool:
    return data.is_cuda


def _aligned(data: torch.Tensor) -> torch.Tensor:
    """The rows (n, row_bytes), each at a multiple of 16 bytes."""
    n, size = data.shape
    if size % 16 == 0:
        return data.contiguous()
    rows = data.new_zeros(n, size + 16 - size % 16)
    rows[:, :size] = data
    return rows[:, :size]


def _shape_alone(rows: int, row_bytes: int) -> torch.Tensor:
    return torch.zeros(1, row_bytes, dtype=torch.uint8, device="cpu").expand(rows, -1)


@dataclasses.dataclass
class BlockLinear:
    """The product with a weight in blocks, in place of the parameter that the blocks were made of."""

    weight: BlockWeight
    activations: str
    parameter: torch.Tensor
    seen: Any = None  # the parameter as the blocks were made of it; None of a released one, which nobody can write

    def __post_init__(self) -> None:
        self.seen = _seen(self.parameter)

    @staticmethod
    def of(members: dict[str, Any]) -> Any:
        """The blocks that `kernelize(weights=)` put into a module; None if its parameter was replaced or written since."""
        found = members.get("_layerzero_blocks")
        if found is None or members["_parameters"]["weight"] is not found.parameter:
            return None
        return found if found.seen is None or found.seen.is_same(found.parameter) else None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"seen": self.seen is None or self.seen.is_same(self.parameter)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, whose parameter has its own count of writes. Blocks are not used if the original was written, or if the
        copy's parameter counts no writes."""
        self.__dict__.update(state)
        held, self.seen = self.seen, _seen(self.parameter)
        if self.seen is not None and not (held and are_counted(self.parameter)):
            self.seen.forget()

    def __call__(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        w = self.weight
        if torch.is_autocast_enabled(rows.device.type):  # as a product with the parameter would
            dtype = torch.get_autocast_dtype(rows.device.type)
            rows, bias = rows.to(dtype), None if bias is None else bias.to(dtype)
        if w.format == BF16:
            half = None if bias is None else bias.to(torch.bfloat16)
            return _OPS["linear"](rows.to(torch.bfloat16), w.packed.view(torch.bfloat16), half).to(rows.dtype)
        return _OPS["linear_gguf"](rows, w.data, w.format, bias, packed=w.order, activations=self.activations)

    def product(self, bias: torch.Tensor | None) -> dict[str, Any]:
        """The arguments of its product, for `add_product`."""
        w = self.weight
        return {"weight": w.data, "packed": w.order, "format": w.format, "activations": self.activations, "bias": bias}


def _seen(parameter: torch.Tensor) -> Seen | None:
    return Seen(parameter) if type(parameter) is torch.nn.Parameter else None


def write_guard(linears: Iterable[dict[str, Any]]) -> Callable[[], bool]:
    """Returns a function that says whether a parameter that blocks replace was written since this call. linears: __dict__ of the
    modules."""
    found = [blocks for blocks in map(BlockLinear.of, linears) if blocks is not None and blocks.seen is not None]
    counted = [(b.parameter, b.seen.version) for b in found if b.seen.version is not None]
    parameters, versions = [parameter for parameter, _ in counted], [version for _, version in counted]
    everything, pointers = [b.parameter for b in found], [b.seen.pointer for b in found]
    words = [word for b in found for word in b.seen.words]
    values = [value for b in found for value in b.seen.values]
    return lambda: (
        [parameter._version for parameter in parameters] != versions
        or [parameter.data_ptr() for parameter in everything] != pointers
        or [word.value for word in words] != values
    )


def add_product(make: ProgramBuilder, out: Rows, source: Rows, product: dict[str, Any], dtype: str) -> None:
    """The steps of a program that multiply rows of `dtype` with a weight in blocks."""
    given = dict(product)
    if given["format"] != BF16:
        weights = {name: make.weight(given.pop(name)) for name in ("weight", "packed", "bias")}
        make.add("linear_gguf", [out], input=source, **weights, **given)
        return
    bias = None if given["bias"] is None else given["bias"].detach().to(torch.bfloat16)
    weight = make.weight(given["packed"].view(torch.bfloat16))
    if dtype == "bfloat16":
        make.add("linear", [out], input=source, weight=weight, bias=make.weight(bias))
        return
    rounded = Rows(make.rows(source.size, "bfloat16"), source.axes)
    sums = Rows(make.rows(out.size, "bfloat16"), out.axes)
    make.add("cast", [rounded], input=source, dtype="bfloat16")
    make.add("linear", [sums], input=rounded, weight=weight, bias=make.weight(bias))
    make.add("cast", [out], input=sums, dtype=dtype)


def join(weights: list[BlockWeight]) -> dict[str, Any]:
    """The arguments of one product for several weights of one format, each of whole groups; afterwards the weights share memory."""
    packed = _as_one(weights)
    begin = 0
    for weight in weights:
        end = begin + weight.packed.shape[0]
        weight.packed = packed[begin:end]
        begin = end
    shape = _shape_alone(sum(weight.rows for weight in weights), weights[0].row_bytes)
    return {"weight": shape, "packed": packed, "format": weights[0].format}


def _as_one(weights: list[BlockWeight]) -> torch.Tensor:
    """Returns the packed groups of all weights as one tensor: a view if they are adjacent in memory, else a copy."""
    first = weights[0].packed
    end = first.data_ptr()
    for weight in weights:
        packed = weight.packed
        same = packed.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same or packed.data_ptr() != end or not packed.is_contiguous():
            return torch.cat([weight.packed for weight in weights])
        end += packed.nbytes
    groups = sum(weight.packed.shape[0] for weight in weights)
    return first.as_strided((groups, first.shape[1]), first.stride())
