"""The C++ conformance cases from Python: torch references and host kernels against the FP64 references of the engine."""

import json

import pytest

torch = pytest.importorskip("torch")
import layerzero  # noqa: E402
from conformance_calls import call_door, engine_accepts, problems, with_written  # noqa: E402
from layerzero import _layerzero as binding  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from operation_cases import arguments_of, lines  # noqa: E402


@pytest.mark.parametrize("name", sorted(contracts()))
def test_torch_reference_agrees_with_fp64(name):
    failures = []
    for line in lines(name):
        if not engine_accepts(name, line):
            continue
        arguments = arguments_of(name, line)
        layout = arguments.pop("layout", None)
        result = with_written(name, call_reference(name, arguments, layout), arguments)
        failures += [f"{line}\n    {text}" for text in problems(name, line, result)]
    assert not failures, f"{len(failures)} of {len(lines(name))}\n" + "\n".join(failures)


@pytest.mark.parametrize("name", sorted(contracts()))
def test_the_door_agrees_with_fp64(name):
    """The kernel that is chosen without a lock, through the Python binding."""
    failures = []
    for line in lines(name):
        if not engine_accepts(name, line):
            continue
        result = call_door(name, line, kernel=None)
        failures += [f"{line}\n    {text}" for text in problems(name, line, result)]
    assert not failures, f"{len(failures)} of {len(lines(name))}\n" + "\n".join(failures)


@pytest.mark.parametrize("name", sorted(contracts()))
def test_every_kernel_refuses_the_same_data(name):
    """What the chosen kernel refuses when it runs, an index outside its tensor, every kernel of the call refuses so."""
    for line in lines(name):
        if engine_accepts(name, line):
            continue
        report = layerzero.explain(name, **arguments_of(name, line))
        kernels = [c.kernel_id for c in report.candidates if c.admissible]
        assert {f"ref.{report.operation}", f"torch.ref.{report.operation}"} <= set(kernels)
        for kernel in kernels:
            with pytest.raises(layerzero.KernelExecutionError, match=f"^{name}: .*wanted"):
                call_door(name, line, kernel=kernel)


def host_kernels():
    torch.empty(0)  # the backends' rows are registered on its first use
    layerzero.rms_norm(torch.ones(1, 8))
    kernels = {}
    for kernel in json.loads(binding.kernels()):
        if kernel["native"] or not kernel["installed"] or kernel["platform"] not in ("cpu", "any"):
            continue
        if kernel["jit"] in ("recorded", "done"):
            continue  # a kernel that no call has: test_compiled_references.py has those that are compiled
        kernels.setdefault((kernel["name"], kernel["kernel_id"]), None)
    return sorted(kernels)


@pytest.mark.parametrize(("name", "kernel"), host_kernels(), ids=str)
def test_host_kernel_agrees_with_fp64(name, kernel):
    failures, admitted = [], 0
    for line in lines(name):
        if not engine_accepts(name, line):
            continue
        try:
            result = call_door(name, line, kernel=kernel)
        except layerzero.NoKernelFoundError:
            continue
        admitted += 1
        failures += [f"{line}\n    {text}" for text in problems(name, line, result)]
    assert not failures, f"{len(failures)} of {admitted}\n" + "\n".join(failures)
    assert admitted, "no case admits it"
