"""Expressions that Inductor compiles for a kind of calls, on the thread of layerzero.jit, with free sizes.

A kernel with `jit: {when: first_call}` is selected only for kinds that are compiled. So a kind that is missing here is
compiled if the call may wait for it; a call that what was compiled does not fit is refused.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from layerzero.errors import KernelRefusedError
from layerzero.host.policy import policy_in_force

Sizes = Mapping[int, int]  # axes that are free, from 2 on, and their sizes while it is compiled
_made: dict[Any, tuple[Callable[..., Any], Callable[[list[Any]], bool]]] = {}
_guard = threading.Lock()


def _in_child() -> None:
    global _guard
    _guard = threading.Lock()  # a fork does not wait for a compilation, and its child lacks the thread that compiled


os.register_at_fork(after_in_child=_in_child)


def compiled(
    kind: Any, expression: Callable[..., list[torch.Tensor]], tensors: list[torch.Tensor], free: Sequence[Sizes]
) -> Any:
    """Returns expression(*tensors), compiled for the kind, and for dtypes, device and sizes; the first len(free) tensors
    have free axes and are contiguous."""
    fixed = [
        t.shape[axis] for t, sizes in zip(tensors, free, strict=False) for axis in range(t.dim()) if axis not in sizes
    ]
    key = (kind, tensors[0].dtype, tensors[0].device, *fixed, *(tuple(sizes) for sizes in free))
    made = _made.get(key)
    if made is None:
        made = _compiled_now(key, expression, tensors, free)
    run, fits = made
    if not fits(tensors):
        raise KernelRefusedError(f"FlexAttention: wanted contiguous tensors as it was compiled for, {kind}, got others")
    outputs = run(*tensors)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _compiled_now(key: Any, expression: Any, tensors: list[torch.Tensor], free: Sequence[Sizes]) -> Any:
    if tensors[0].is_cuda and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        raise KernelRefusedError(  # Inductor of 2.11 divides the numbers of heads as symbols, and fails
            f"FlexAttention: wanted torch 2.13 or newer for CUDA, got {torch.__version__}: its compiler fails on these calls"
        )
    keys = policy_in_force()["keys"]
    waits = keys["allow_jit_compile"]["value"] or not keys["jit.fail_on_no_fallback"]["value"]  # layerzero.jit waits
    if not waits or (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        raise KernelRefusedError(
            f"FlexAttention: wanted a call of a kind that is compiled on {tensors[0].device}, got {key[0]}; call "
            "`layerzero.warmup` first, or set allow_jit_compile"
        )
    with _guard:
        if key not in _made:
            _made[key] = _compile(expression, tensors, free)
        return _made[key]


def _compile(expression: Any, tensors: list[torch.Tensor], free: Sequence[Sizes]) -> Any:
    from torch._inductor import standalone_compile

    from layerzero.backends.inductor import worker
    from layerzero.torch.captures import away_from_captures

    sizes = [*free, *({} for _ in tensors[len(free) :])]
    with away_from_captures(str(tensors[0].device)), torch.no_grad():
        examples = [
            t.new_ones([axes.get(axis, size) for axis, size in enumerate(t.shape)])
            for t, axes in zip(tensors, sizes, strict=True)
        ]
        graph, traced, shape_env = worker.with_symbols(expression, examples, [frozenset(axes) for axes in sizes])
        options = {"config_patches": {"triton.cudagraphs": False}}
        run = standalone_compile(graph, traced, dynamic_shapes="from_graph", options=options)
        run(*examples)  # so that Triton compiles now
        if tensors[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        return run, worker.guards(shape_env, traced)
