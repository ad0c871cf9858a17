"""A line of the conformance cases as a call through the binding, and its result against the FP64 reference of the engine."""

import functools

import layerzero
import torch
from layerzero import _layerzero as binding
from layerzero.backends.flashinfer import plans
from layerzero.contracts import condition, contracts, present_outputs
from layerzero.inspection import kernel_rows
from operation_cases import arguments_of


def raw(tensor):
    if tensor is None:
        return None
    dense = tensor.detach().contiguous()
    data = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return data, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def with_written(name, result, arguments):
    """A call's result; tensors that it has written in place follow the outputs."""
    params = [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]
    if not params:
        return result
    outputs = () if result is None else result if isinstance(result, tuple) else (result,)
    return (*outputs, *(arguments[p] for p in params))


def problems(name, line, result, numerics=""):
    """What differs from the FP64 reference, by the kernel's numerics class where it has one. Outputs that the call does not have are filled in as None."""
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    arguments, contract = binding.verify_case(name, line)["arguments"], contracts()[name]
    given = present_outputs(contract, arguments.get(condition(contract)))
    outputs = [raw(results.pop(0)) if output in given and results else None for output in contract["outputs"]]
    outputs += [raw(written) for written in results]
    return [r["text"] for r in binding.verify_compare(name, line, tuple(outputs), numerics) if not r["ok"]]


def engine_accepts(name, line):
    """False for data that kernels must refuse when they run (an index outside its tensor)."""
    try:
        call_door(name, line, kernel=None)
    except layerzero.KernelExecutionError:
        return False
    return True


def call_door(name, line, kernel, place=None):
    """The result, with what the call has written; `place` puts a case's tensors elsewhere first."""
    arguments = arguments_of(name, line)
    if place:
        arguments = {k: place(v) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    named = arguments | ({"kernel": kernel} if kernel else {})
    positional = [p["name"] for p in contracts()[name]["params"] if not p.get("keyword_only")]
    values = []
    while positional and positional[0] in named:
        values.append(named.pop(positional.pop(0)))
    return with_written(name, binding.ops[name](*values, **named), arguments)


def on_device(tensor):
    """A tensor of a case with its whole memory, strides and offset."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    memory = torch.tensor([], dtype=tensor.dtype).set_(tensor.untyped_storage()).cuda()
    moved = memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if moved.dtype in (torch.int32, torch.int64):
        plans.read_tables(moved)  # kernels with plans refuse tables that were not read
    return moved


@functools.cache
def numerics_of(name):
    """The numerics class of each kernel of an operation."""
    return {k["kernel_id"]: k["numerics"] for k in kernel_rows(name)}
