"""Shared code of adapters: small tensors cached per device, results rounded once, checks that only run on CPUs."""

from collections.abc import Callable
from typing import Any

import torch

from layerzero.errors import KernelExecutionError

_kept: dict[tuple[Any, torch.device], torch.Tensor] = {}


def constant(key: Any, device: torch.device, make: Callable[[torch.device], torch.Tensor]) -> torch.Tensor:
    """Returns `make(device)`, cached under (key, device). Every stream may read it: it is complete once cached."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return make(device)  # traced: a kept tensor would be a constant of the trace, and a made one has no memory
    kept = _kept.get((key, device))
    if kept is not None:
        return kept
    with torch.inference_mode(False), torch.no_grad():
        made = make(device)
    if device.type == "cuda":
        if torch.cuda.is_current_stream_capturing():
            return made  # made during a capture: its memory belongs to the graph
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(device))
        ready.synchronize()
    _kept[(key, device)] = made
    return made


def number(value: float, device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Returns a tensor [1]: for a divisor that is a Python number torch multiplies by the reciprocal."""
    return constant((value, dtype), device, lambda d: torch.full((1,), value, dtype=dtype, device=d))


def counting(count: int, device: torch.device) -> torch.Tensor:
    """Returns 0 to count - 1 in int64, a view of a cached tensor: read it only."""
    size = 1 << max(count - 1, 0).bit_length()  # few different tensors, whatever the counts
    return constant(("counting", size), device, lambda d: torch.arange(size, device=d))[:count]


def wants_grad(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def rounded(function: Callable[..., torch.Tensor], a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> Any:
    """Returns function(a, b) in the promoted dtype, rounded once to `dtype`: one kernel on CUDA."""
    if torch.promote_types(a.dtype, b.dtype) == dtype:
        return function(a, b)
    if wants_grad(a, b):
        return function(a, b).to(dtype)
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return function(a, b, out=torch.empty(shape, dtype=dtype, device=a.device))


def check_below(name: str, values: torch.Tensor, limit: int) -> None:
    """Refuses an index outside [.., limit). On CUDA nothing is read: there torch's own check stops the kernel."""
    if values.is_cuda or not values.numel():
        return
    largest = int(values.max())
    if largest >= limit:
        raise KernelExecutionError(name, f"numbers below {limit}", str(largest))


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor [..., width] with elements, as [rows, width]."""
    return tensor.view(-1, tensor.shape[-1])


# Of packages whose functions write into tensors of their caller. None of them changes an input.
_GATED = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}


def added_and_normed(function: Callable[..., Any], input: torch.Tensor, residual: torch.Tensor) -> Any:
    """Returns output and sum of `function(input, residual)`, which overwrites both with them."""
    output, total = (t.clone(memory_format=torch.contiguous_format) for t in (input, residual))
    if input.numel():
        function(as_rows(output), as_rows(total))
    return output, total


def gated(functions: Any, input: torch.Tensor, activation: str) -> torch.Tensor:
    """Returns what the function of `activation` in `functions` writes into its first argument."""
    output = input.new_empty((*input.shape[:-1], input.shape[-1] // 2))
    if output.numel():
        getattr(functions, _GATED[activation])(as_rows(output), as_rows(input))
    return output
