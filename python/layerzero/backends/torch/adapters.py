"""PyTorch's own functions as kernels; each takes its operation's parameters in the contract's order.

Adapters also handle what the constraints in capabilities.json do not exclude. Attention is in attention.py.
"""

import contextlib
from typing import Any

import torch
from torch.nn import functional as F

from layerzero.errors import KernelExecutionError
from layerzero.torch.captures import plans_first


def rms_norm(input, weight, eps, weight_offset=None):
    return F.rms_norm(input, (input.shape[-1],), weight, eps)


def layer_norm(input, normalized_shape, weight, bias, eps, weight_offset=None):
    return F.layer_norm(input, (input.shape[-1],), weight, bias, eps)


@plans_first
def linear(input, weight, bias):
    if input.dtype == torch.bfloat16 and input.shape[-1] % 2:
        input = input.contiguous()  # torch 2.13 on a CPU with AMX reads memory between strided rows
    return F.linear(input, weight, bias)


def embedding(input, weight):
    try:
        return F.embedding(input, weight)
    except (IndexError, RuntimeError) as error:
        if weight.shape[0] and not isinstance(error, IndexError):  # for an empty table torch raises a RuntimeError
            raise
        raise KernelExecutionError(
            "embedding: input", f"numbers from 0 to {weight.shape[0] - 1}", f"'{error}'"
        ) from error


def softmax(logits, temperature, row_temperature=None):
    if row_temperature is not None:
        return _row_softmax(logits, row_temperature[..., None])
    x = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0 and x.numel():
        if temperature > 1:  # then no difference of finite logits overflows
            x, temperature = x * 2.0**-64, temperature * 2.0**-64
        limits = torch.finfo(x.dtype)  # the temperature and its reciprocal must be normal numbers
        x = (x - x.detach().amax(-1, keepdim=True)) / min(max(temperature, limits.tiny), limits.max / 4)
    return torch.softmax(x, dim=-1).float()


def _row_softmax(logits, temperature):
    """Softmax with a temperature for each row. On CUDA, where none is read, a temperature of 0 or less produces NaN."""
    valid = temperature > 0
    if not temperature.is_cuda and not bool((valid & temperature.isfinite()).all()):
        raise KernelExecutionError("softmax: row_temperature", "numbers above 0", str(temperature.flatten().tolist()))
    if not logits.numel():
        return torch.softmax(logits, dim=-1, dtype=torch.float32)
    kind = torch.float64 if logits.dtype == torch.float64 else torch.float32
    limits = torch.finfo(kind)
    half = torch.where(valid, temperature.to(kind).clamp(limits.tiny * 4, limits.max) * 0.5, float("nan"))
    # No difference of halved finite logits overflows.
    x = torch.add(logits.detach().amax(-1, keepdim=True).to(kind) * -0.5, logits, alpha=0.5)
    return torch.softmax(x / half if x.requires_grad else x.div_(half), dim=-1).float()


_ARITHMETIC: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


def elementwise(input, other, function, scale):
    return _ARITHMETIC[function](input, other)


def cast(input, dtype):
    return input.to(getattr(torch, dtype), copy=True)


def convert(input, dtype, source, saturate):
    return cast(input, dtype)


_POOLS: dict[Any, Any] = {
    ("max", 1): F.max_pool1d,
    ("max", 2): F.max_pool2d,
    ("mean", 1): F.avg_pool1d,
    ("mean", 2): F.avg_pool2d,
}


def _pool(axes, input, window, stride, padding, mode, count_include_pad):
    given = input.dim() == axes + 2 and input.numel() > 0  # the rank that torch supports
    x = input if given else input.reshape(input.shape[:-axes].numel(), 1, *input.shape[-axes:])
    function = _POOLS[mode, axes]
    if mode == "max":
        output = function(x, window, stride, padding)
    else:
        output = function(x, window, stride, padding, False, count_include_pad)
    return output if given else output.reshape(*input.shape[:-axes], *output.shape[2:])


def pool1d(input, window, stride, padding, mode, count_include_pad):
    return _pool(1, input, window, stride, padding, mode, count_include_pad)


def pool2d(input, window_h, window_w, stride_h, stride_w, padding_h, padding_w, mode, count_include_pad):
    window, stride, padding = (window_h, window_w), (stride_h, stride_w), (padding_h, padding_w)
    return _pool(2, input, window, stride, padding, mode, count_include_pad)


def _full_precision(input):
    """Disables TF32, which torch allows cuDNN to use for float32 but the operation's tolerance does not."""
    flags = torch.backends.cudnn
    if not (input.is_cuda and input.dtype == torch.float32 and flags.allow_tf32):
        return contextlib.nullcontext()
    kept = {"enabled": flags.enabled, "benchmark": flags.benchmark, "deterministic": flags.deterministic}
    return flags.flags(**kept, allow_tf32=False)


def conv1d(input, weight, bias, stride, padding, dilation, groups):
    with _full_precision(input):
        return F.conv1d(input, weight, bias, stride, padding, dilation, groups)


def conv2d(input, weight, bias, *steps):
    with _full_precision(input):
        return F.conv2d(input, weight, bias, steps[:2], steps[2:4], steps[4:6], steps[6])


def conv3d(input, weight, bias, *steps):
    with _full_precision(input):
        return F.conv3d(input, weight, bias, steps[:3], steps[3:6], steps[6:9], steps[9])
