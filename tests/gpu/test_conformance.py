"""The conformance cases on the device: every kernel that runs there, own, torch's and references, against FP64."""

import collections
import json

import conformance_calls as calls
import layerzero as lz
import pytest
import test_conformance as host
import torch
from layerzero import _layerzero as door
from layerzero._contracts import contracts

LOST = ("device-side assert", "illegal memory access", "misaligned address", "unspecified launch failure")


def on_device(value):
    """A tensor of a case with its whole memory, strides and offset."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() == 0:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    memory = torch.tensor([], dtype=value.dtype).set_(value.untyped_storage()).cuda()
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def call(name, line, kernel):
    case = door.verify_case(name, line)
    named = {key: on_device(value) for key, value in calls.arguments_of(case).items()}
    if case["layout"]:
        named["layout"] = case["layout"]
    positional = [p["name"] for p in contracts()[name]["params"] if not p.get("keyword_only")]
    values = []
    while positional and positional[0] in named:
        values.append(named.pop(positional.pop(0)))
    result = door.ops[name](*values, **named, kernel=kernel)
    moved = [None if t is None else t.cpu() for t in (result if isinstance(result, tuple) else (result,))]
    return moved if isinstance(result, tuple) else moved[0]


def kernels_of(name):
    rows = [k for k in lz.list_kernels(name) if k.installed and k.platform in ("cuda", "any")]
    return list(dict.fromkeys(k.kernel_id for k in rows if not k.kernel_id.startswith("tests.")))


@pytest.mark.parametrize("name", sorted(contracts()))
def test_every_kernel_of_the_device_agrees_with_fp64(name, record_property):
    failures, ran = [], collections.Counter()
    usable = [(number, line) for number, line in host.cases(name) if calls.engine_accepts(name, line)]
    for kernel in kernels_of(name):
        for number, line in usable:
            if host.beyond_torch(kernel, line):
                continue
            try:
                result = call(name, line, kernel)
            except lz.NoKernelFoundError:
                continue
            except Exception as error:
                if any(text in str(error) for text in LOST):
                    pytest.exit(f"the device is lost: {kernel} on line {number}: {line}: {error}", returncode=3)
                failures.append(f"{kernel}, line {number}: {line}\n    {type(error).__name__}: {error}")
                continue
            ran[kernel] += 1
            failures += [f"{kernel}, line {number}: {line}\n    {text}" for text in calls.problems(name, line, result)]
    record_property("pairs", json.dumps(ran))
    record_property("failed", len(failures))
    assert not failures, f"{len(failures)} of {ran.total()}\n" + "\n".join(failures[:40])
    unused = [k for k in kernels_of(name) if k.startswith("cuda.") and not ran[k]]
    assert not unused, f"no case admits {unused}"
