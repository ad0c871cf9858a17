"""Linear layers that other libraries have quantized: the same weights, multiplied by `linear_quantized`."""

import dataclasses
from typing import Any

import torch
from torch import nn

from layerzero.integrations import weights
from layerzero.integrations.transformers import counts, structure
from layerzero.integrations.transformers.run import replacing
from layerzero.torch.writes import Seen, are_counted

_HELD = "_layerzero_quantized"
_OWN = "_layerzero_own_forward"  # the forward that a library has set on the module itself


@dataclasses.dataclass
class QuantizedLinear:
    """The weight of one layer, and the tensors that it was read from: it is used as long as nobody replaces or writes them."""

    weight: weights.QuantizedWeight
    layout: weights.Layout
    sources: tuple[torch.Tensor, ...]
    seen: list[Seen]

    def is_current(self) -> bool:
        try:
            now = self.layout.sources()
        except (AttributeError, KeyError, TypeError):  # parameters of another kind were put in
            return False
        same = len(now) == len(self.sources) and all(a is b for a, b in zip(now, self.sources, strict=True))
        return same and all(seen.is_same(each) for seen, each in zip(self.seen, now, strict=True))

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a model has other tensors: its layers run their own code."""

    def __reduce__(self) -> Any:
        return _nothing, ()


def _nothing() -> None:
    return None


def quantized_forward(self, *args, **kwargs):
    if len(args) == 1 and not kwargs and not structure.takes_own_code(self) and structure.are_readable(args[0]):
        rows, held, bias = args[0], self.__dict__.get(_HELD), self._parameters.get("bias", self._buffers.get("bias"))
        served = held is not None and held.is_current() and not torch.is_autocast_enabled(rows.device.type)
        if served and rows.device == held.weight.codes.device and (bias is None or bias.dtype == rows.dtype):
            counts.count_call(self)
            return held.weight.product(rows, bias)
    own = self.__dict__.get(_OWN)
    return type(self).forward(self, *args, **kwargs) if own is None else own(*args, **kwargs)


def replace_quantized(model: nn.Module, mark: Any) -> set[str]:
    """Serves the quantized layers whose layout fits; the names of all that some format knows, whose reasons the report has."""
    known = set()
    for name, module in model.named_modules():
        found = weights.read(module)
        if found is None or replacing.is_served(module, quantized_forward):
            continue
        known.add(name)
        held = found if isinstance(found, str) else _held(module, found)
        if isinstance(held, str):
            mark.report.left[name] = held
            continue
        own = module.__dict__.get("forward")
        part = mark.report.add(f"{held.layout.library} Linear", "mlp.linear.quantized")
        replacing.replace(module, quantized_forward, part, quantized=held)
        if own is not None:
            module.__dict__[_OWN] = own
    return known


def put_back(module: nn.Module) -> None:
    """The forward that a library had set on a module, after ours was taken away."""
    own = module.__dict__.get(_OWN)
    if own is not None:
        module.__dict__["forward"] = own


def _held(module: nn.Module, layout: weights.Layout) -> QuantizedLinear | str:
    """The weight in the layout of kernels, proven to be the layer's, or the reason why it is not served."""
    called = f"{layout.library}, {layout.what}"
    if any(structure.hooks_of(module)):
        return "has forward or backward hooks"
    sources = layout.sources()
    if any(each.device.type not in ("cpu", "cuda") for each in sources):
        return f"{called}: its weight is on {sources[0].device}"
    if not all(map(are_counted, sources)):
        return f"{called}: its tensors are inference tensors, into which torch counts no writes"
    try:
        with torch.no_grad():
            reason = why = None
            for weight in layout.unpack():
                why = _why_not_the_same(module, layout, weight)
                if why is None:
                    return QuantizedLinear(weight, layout, sources, [Seen(each) for each in sources])
                reason = reason or why
    except Exception as error:  # of a version of the library that nobody has seen
        reason = f"its weight could not be read: {structure.first_line(error)}"
    return f"{called}: {reason}"


def _why_not_the_same(module: nn.Module, layout: weights.Layout, weight: weights.QuantizedWeight) -> str | None:
    if layout.own is not None:
        own = layout.own()
        if not torch.equal(weight.values(own.dtype), own):
            return "its own weight has other bits, as it rounds in between"
    return _why_not_the_product(module, weight)


def _why_not_the_product(module: nn.Module, weight: weights.QuantizedWeight) -> str | None:
    bias = module._parameters.get("bias", module._buffers.get("bias"))
    dtype = weight.scales.dtype if bias is None else bias.dtype
    columns = weight.codes.shape[1] * (2 if weight.format.endswith("int4") else 1)
    rows = structure.rows_for(torch.empty(0, dtype=dtype, device=weight.codes.device), columns)
    own = module.__dict__.get("forward", None)
    expected = structure.result_of(*((own, rows) if own is not None else (type(module).forward, module, rows)))
    if expected is None:
        return "its own code does not run here, so that nothing can be compared"
    return (
        None
        if structure.agrees_by_row(weight.product(rows, bias), expected)
        else "its own code computes something else"
    )
