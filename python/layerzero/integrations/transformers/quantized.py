"""Linear layers that other libraries have quantized: the same weights, multiplied by `linear_quantized`."""

import dataclasses
from typing import Any

import torch
from torch import nn

from layerzero.integrations import weights
from layerzero.integrations.modules import OWN_FORWARD
from layerzero.integrations.transformers import counts, structure
from layerzero.integrations.transformers.run import replacing
from layerzero.torch.writes import Seen, are_counted

_HELD = "_layerzero_quantized"


@dataclasses.dataclass
class QuantizedLinear:
    """The weight of one layer, used until one of the tensors that it was read from is replaced or written.

    dtype: of the rows for which the product was compared with the layer's own code; other rows are not served.
    """

    weight: weights.QuantizedWeight
    dtype: torch.dtype
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
        rows, held, bias = args[0], self.__dict__.get(_HELD), _bias_of(self)
        served = held is not None and held.is_current() and not torch.is_autocast_enabled(rows.device.type)
        proven = served and rows.dtype == held.dtype and rows.device == held.weight.codes.device
        if proven and (bias is None or bias.dtype == rows.dtype):
            counts.count_call(self)
            return held.weight.product(rows, bias)
    own = self.__dict__.get(OWN_FORWARD)
    return type(self).forward(self, *args, **kwargs) if own is None else own(*args, **kwargs)


def replace_quantized(model: nn.Module, mark: Any) -> set[str]:
    """Replaces the quantized layers whose layout is known. Returns the names of all quantized layers; the report has the reasons
    for those that are not served."""
    known = set()
    for name, module in model.named_modules():
        if replacing.is_served(module, quantized_forward):
            continue
        held = _read(module)
        if held is None:
            continue
        known.add(name)
        if isinstance(held, str):
            mark.report.left[name] = held
            continue
        own = module.__dict__.get("forward")
        part = mark.report.add(f"{held.layout.library} Linear", "mlp.linear.quantized")
        replacing.replace(module, quantized_forward, part, quantized=held)
        if own is not None:
            module.__dict__[OWN_FORWARD] = own
    return known


def _read(module: nn.Module) -> QuantizedLinear | str | None:
    try:
        found = weights.read(module)
        return _held(module, found) if isinstance(found, weights.Layout) else found
    except Exception as error:  # of a version of a library that nobody has seen
        return f"{type(module).__name__}: its weight could not be read: {structure.first_line(error)}"


def _held(module: nn.Module, layout: weights.Layout) -> QuantizedLinear | str:
    """The weight in the layout of kernels, proven to be the layer's, or the reason why it is not served."""
    called = f"{layout.library}, {layout.what}"
    sources = layout.sources()
    if reason := _why_more(module, layout, sources):
        return reason
    if any(each.device.type not in ("cpu", "cuda") for each in sources):
        return f"{called}: its weight is on {sources[0].device}"
    if not all(map(are_counted, sources)):
        return f"{called}: its tensors are inference tensors, into which torch counts no writes"
    with torch.no_grad():
        own = None if layout.own is None else layout.own()
        reason = None
        for weight in layout.unpack():
            dtype = _dtype_of(module, own, weight)
            why = _why_not_the_same(module, own, dtype, weight)
            if why is None:
                return QuantizedLinear(weight, dtype, layout, sources, [Seen(each) for each in sources])
            reason = reason or why
    return f"{called}: {reason}"


def _why_more(module: nn.Module, layout: weights.Layout, sources: tuple[torch.Tensor, ...]) -> str | None:
    """Why a layer may compute more than a product with its weight and bias, now or after training; None if it does not."""
    if any(structure.hooks_of(module)):
        return "has forward or backward hooks"
    if not layout.sets_forward and structure.replaced_forward(module.__dict__) is not None:
        return "its forward was replaced by something else"
    parts = [name for name, part in module._modules.items() if part is not None]
    read = {id(each) for each in sources}
    for name, each in module._parameters.items():
        if each is not None and name not in ("weight", "bias") and each.is_floating_point() and id(each) not in read:
            parts.append(name)
    if getattr(module, "adapter", None) is not None:
        parts.append("adapter")
    return f"has parts that its format does not have: {', '.join(dict.fromkeys(parts))}" if parts else None


def _bias_of(module: nn.Module) -> torch.Tensor | None:
    return module._parameters.get("bias", module._buffers.get("bias"))


def _dtype_of(module: nn.Module, own: torch.Tensor | None, weight: weights.QuantizedWeight) -> torch.dtype:
    """The dtype of the rows that the layer takes: its bias's, without a bias its weight's; scales may have another one."""
    bias = _bias_of(module)
    if bias is not None:
        return bias.dtype
    return weight.scales.dtype if own is None else own.dtype


def _why_not_the_same(
    module: nn.Module, own: torch.Tensor | None, dtype: torch.dtype, weight: weights.QuantizedWeight
) -> str | None:
    if own is not None and not torch.equal(weight.values(own.dtype), own):
        return "its own weight has other bits, as it rounds in between"
    columns = weight.codes.shape[1] * (2 if weight.format.endswith("int4") else 1)
    rows = structure.rows_for(torch.empty(0, dtype=dtype, device=weight.codes.device), columns)
    forward = module.__dict__.get("forward")
    expected = structure.result_of(*((forward, rows) if forward is not None else (type(module).forward, module, rows)))
    if expected is None:
        return "its own code does not run here, so that nothing can be compared"
    same = structure.agrees_by_row(weight.product(rows, _bias_of(module)), expected)
    return None if same else "its own code computes something else"
