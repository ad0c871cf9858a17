"""Linear layers that other libraries have quantized, in the layout of `linear_quantized`."""

from torch import nn

from layerzero.integrations.weights import awq, bitsandbytes, compressed_tensors, gptq, torchao
from layerzero.integrations.weights.codes import Layout as Layout
from layerzero.integrations.weights.codes import QuantizedWeight as QuantizedWeight

prepare = compressed_tensors.unpack_as_a_call_would
FORMATS = (torchao, compressed_tensors, gptq, awq, bitsandbytes)


def read(layer: nn.Module) -> Layout | str | None:
    """What a format knows about a linear layer: its `Layout`, the reason why no kernel serves it, or None of a layer of no
    format. Nothing is unpacked yet.
    """
    for format in FORMATS:
        found = format.read(layer)
        if found is not None:
            return found
    return None
