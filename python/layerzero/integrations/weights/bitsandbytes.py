"""bitsandbytes: Linear8bitLt (LLM.int8()) and Linear4bit (NF4, FP4). No operation computes what they do."""

from typing import Any

from torch import nn

from layerzero.integrations.weights import codes


def read(layer: nn.Module) -> codes.Layout | str | None:
    weight: Any = layer._parameters.get("weight")
    kind = type(weight)
    if not kind.__module__.startswith("bitsandbytes."):
        return None
    if kind.__name__ == "Int8Params":
        return "weight is a Int8Params: LLM.int8() rounds what is multiplied too, but for its outliers"
    state = getattr(weight, "quant_state", None)
    named = getattr(state, "quant_type", None) or getattr(weight, "quant_type", "4-bit")
    return f"weight is a {kind.__name__}: {named} codes are places in a table of numbers, kernels take integers and FP8"
