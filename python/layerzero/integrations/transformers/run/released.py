"""A parameter whose memory was freed, and an embedding that reads its rows from packed blocks instead."""

from typing import Any, NoReturn

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.errors import ReleasedWeightError
from layerzero.integrations.transformers.run.blocks import GROUP, BlockWeight

_OPS = _layerzero.ops


def _refuse(what: str) -> NoReturn:
    raise ReleasedWeightError(
        "weights",
        f"the values of a parameter for {what}",
        "one that kernelize(release_originals=True) has released",
        "call the model under torch.no_grad() or inference_mode(), or load it again without release_originals",
    )


def refuse_gradients(*tensors: Any) -> None:
    """Raises ReleasedWeightError if a product of these tensors with packed blocks would need a gradient."""
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors):
        _refuse("a gradient")


class ReleasedParameter(torch.Tensor):
    """A parameter with shape, dtype and device but without values: reading or writing them raises ReleasedWeightError."""

    _is_param = True  # for isinstance(..., torch.nn.Parameter)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(parameter: torch.Tensor) -> "ReleasedParameter":
        return _released(parameter.shape, parameter.dtype, parameter.device)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        _refuse(str(function))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"ReleasedParameter({tuple(self.shape)}, dtype={self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "ReleasedParameter":
        return memo.setdefault(id(self), ReleasedParameter.of(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _released, (self.shape, self.dtype, self.device)


def _released(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> ReleasedParameter:
    make: Any = torch.Tensor._make_wrapper_subclass
    return make(ReleasedParameter, shape, dtype=dtype, device=device, requires_grad=False, storage_size=0)


def _refused_method(name: str) -> Any:
    return lambda self, *_, **__: _refuse(name)


# Methods that access memory without __torch_dispatch__.
for _name in ("data_ptr", "numpy", "share_memory_", "storage", "tolist", "untyped_storage", "__array__", "__dlpack__"):
    setattr(ReleasedParameter, _name, _refused_method(_name))
ReleasedParameter.data = property(_refused_method("data"), _refused_method("data"))  # type: ignore[assignment]


def apply_or_refuse(self, function: Any, recurse: bool = True) -> nn.Module:
    """Replaces `_apply`, by which a module is moved: it refuses before any parameter is moved."""
    for parameter in self.parameters():
        if type(parameter) is ReleasedParameter:
            function(parameter)
    return type(self)._apply(self, function, recurse)


def refuse_if_released(model: nn.Module, what: str) -> None:
    names = [name for name, parameter in model.named_parameters() if type(parameter) is ReleasedParameter]
    if names:
        released = f"{names[0]} and {len(names) - 1} more were released by kernelize(release_originals=True)"
        raise ReleasedWeightError(what, "a model with its own parameters", f"one whose {released}", "load it again")


class BlockRows:
    """The lookup of an embedding in a weight in blocks."""

    def __init__(self, weight: BlockWeight, parameter: torch.Tensor) -> None:
        self.weight = weight
        self.parameter = parameter
        self.seen = None  # nobody can write into it

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        rows, columns = self.parameter.shape
        if self.weight.as_rows:  # torch refuses a wrong id, as for the parameter
            found = self.weight.data.index_select(0, ids.flatten())
            dtype = str(self.parameter.dtype).removeprefix("torch.")
            values = _OPS["dequantize_gguf"](found, columns, format=self.weight.format, dtype=dtype)
            return values.view(*ids.shape, columns)
        index = ids.flatten().tolist()
        if index and (min(index) < 0 or max(index) >= rows):
            raise IndexError(f"embedding: wanted ids from 0 to {rows - 1}, got {min(index)} to {max(index)}")
        return rows_of(self.weight, ids.flatten(), columns).to(self.parameter.dtype).view(*ids.shape, columns)


_CODE_BYTES = {"q4_0": 256, "q4_1": 256, "q4_k": 256, "q6_k": 384, "q8_0": 512}  # of 32 values in 16 rows


def rows_of(weight: BlockWeight, index: torch.Tensor, columns: int) -> torch.Tensor:
    """Rows (n,) as dequantize_gguf returns them in float32, from the order of linear_gguf_prepack."""
    format, packed = weight.format, weight.packed
    at: Any = (index // GROUP, index % GROUP)
    if len(index) == 1:  # views are taken sooner than copies
        one = int(index)
        at = slice(one // GROUP, one // GROUP + 1), one % GROUP
    group, lane = at
    blocks, size = columns // 32, _CODE_BYTES[format]
    words = packed[:, : blocks * size].view(torch.int32).unflatten(1, (blocks, size // 64, GROUP))
    found = words[group, :, :, lane].contiguous().view(torch.uint8).unflatten(2, (-1, 4))
    codes = _codes(found, format)  # (n, blocks, 32)
    scales = packed[:, blocks * size :]
    if format in ("q4_k", "q6_k"):
        values = _of_256(codes.float().unflatten(1, (-1, 8)), scales, at, format)
    else:
        parts = 2 if format == "q4_1" else 1
        halves = scales[:, : blocks * parts * 2 * GROUP].view(torch.float16).unflatten(1, (blocks, parts, GROUP))
        wide = halves[group, :, :, lane].float()  # (n, blocks, parts)
        zero = {"q4_0": 8, "q8_0": 128}.get(format, 0)
        values = wide[:, :, :1] * (codes.to(torch.int16) - zero)
        values = values + wide[:, :, 1:] if parts == 2 else values
    return values.reshape(-1, columns)


def _codes(found: torch.Tensor, format: str) -> torch.Tensor:
    if format == "q8_0":
        return found.flatten(2)
    low = found[:, :, :4].flatten(2)
    codes = torch.cat([low & 15, low >> 4], -1)
    if format == "q6_k":
        high = torch.stack([found[:, :, 4:] >> shift & 3 for shift in (0, 2, 4, 6)], 3)
        codes = codes | high.flatten(2) << 4
    return codes


def _of_256(codes: torch.Tensor, scales: torch.Tensor, at: tuple[Any, Any], format: str) -> torch.Tensor:
    """Values of the K formats from codes (n, blocks of 256, 8, 32)."""
    group, lane = at
    blocks, halves = codes.shape[1], 2 if format == "q4_k" else 1
    scales = scales[:, : blocks * (halves * 2 + 16) * GROUP].unflatten(1, (blocks, -1))
    wide = scales[..., : halves * 2 * GROUP].view(torch.float16).unflatten(-1, (halves, GROUP))
    wide = wide[group, :, :, lane].float().unsqueeze(-1)  # (n, blocks, halves, 1)
    small = scales[..., halves * 2 * GROUP :].unflatten(-1, (8, 2, GROUP))[group, :, :, :, lane]
    if format == "q4_k":
        d, m = wide[:, :, :1], wide[:, :, 1:]
        s, t = small.float().unsqueeze(-1).unbind(3)
        return (d * s) * codes - (m * t)
    factors = wide * small.contiguous().view(torch.int8).float()  # (n, blocks, 8, 2)
    return (factors.unsqueeze(-1) * (codes - 32).unflatten(-1, (2, 16))).flatten(-2)
