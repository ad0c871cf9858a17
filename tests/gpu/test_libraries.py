"""Rows of libraries on the device: the recorded signatures are those of the installed library, and some case of each row
is admitted. tests/gpu/test_conformance.py compares the results of every case with FP64."""

import importlib
import inspect

import conformance_calls as calls
import layerzero as lz
import library_stand_ins as stand_ins
import pytest
import torch
from layerzero import _layerzero, backends
from layerzero.backends.flashinfer import plans
from layerzero.contracts import contracts
from operation_cases import lines

NAMES = {op["id"]: name for name, contract in contracts().items() for op in contract["operations"]}
LIBRARIES = sorted(p.parent.name for p in backends.FOLDER.glob("*/capabilities.json"))
OPERATORS = {"_C": "vllm", "_C_cache_ops": "vllm", "_moe_C": "vllm", "sgl_kernel": "sgl_kernel"}


def proven(library):
    """Skips where the library is not installed; fails where it is and does not work."""
    lz.list_kernels()
    if not backends.libraries()[library]["installed"]:
        pytest.skip(f"{library} is not installed")
    assert _layerzero.prove_backend(library) == ""


@pytest.mark.parametrize("name", stand_ins.SIGNATURES["functions"])
def test_a_recorded_signature_is_the_librarys(name):
    module, function = name.split(":")
    library = {"liger_kernel": "liger", "fused_layer_norm_cuda": "apex"}.get(module.split(".")[0], module.split(".")[0])
    proven(library)
    try:
        found = inspect.signature(inspect.unwrap(getattr(importlib.import_module(module), function)))
    except ValueError:
        pytest.skip("a compiled function says nothing about its parameters")
    recorded = list(stand_ins.signature(stand_ins.SIGNATURES["functions"][name]).parameters)
    assert list(found.parameters)[: len(recorded)] == recorded
    further = list(found.parameters.values())[len(recorded) :]
    assert all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in further)


@pytest.mark.parametrize("space", stand_ins.SIGNATURES["torch_ops"])
def test_a_recorded_schema_is_the_librarys(space):
    proven(OPERATORS[space])
    for text in stand_ins.SIGNATURES["torch_ops"][space]:
        recorded = torch._C.parse_schema(f"{space}::{text}")
        found = getattr(getattr(torch.ops, space), recorded.name.split("::")[1]).default._schema
        kinds = [(a.name, str(a.type), a.is_write) for a in found.arguments]
        assert kinds[: len(recorded.arguments)] == [(a.name, str(a.type), a.is_write) for a in recorded.arguments]
        assert all(a.has_default_value() for a in found.arguments[len(recorded.arguments) :])


ON_DEVICE = [name for name in LIBRARIES if stand_ins.descriptor(name)["platform"] == "cuda"]


# batch_split takes only calls that are larger than cases.
@pytest.mark.parametrize("library", [name for name in ON_DEVICE if name != "batch_split"])
def test_every_row_is_reached_by_a_case(library):
    proven(library)
    left = []
    for operation, rows in stand_ins.descriptor(library)["ops"].items():
        name = NAMES[operation]
        installed = {k.kernel_id for k in lz.list_kernels(name) if k.installed}
        left += [
            row["kernel_id"] for row in rows if row["kernel_id"] in installed and not admits(name, row["kernel_id"])
        ]
    assert not left


def on_device(tensor):
    moved = tensor.cuda()
    if moved.dtype in (torch.int32, torch.int64):
        plans.read_tables(moved)  # kernels with plans refuse tables that were not read
    return moved


def admits(name, kernel):
    """Returns whether the row takes a case, whatever the result is."""
    for line in lines(name):
        try:
            calls.call_door(name, line, kernel, place=on_device)
            return True
        except lz.NoKernelFoundError:
            continue
        except lz.KernelExecutionError:
            return True
    return False
