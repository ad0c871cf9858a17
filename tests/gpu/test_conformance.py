"""The conformance cases on the device: every kernel that runs there, own, torch's and references, against FP64.

`--kernel 'vllm.*'` runs those of one library.
"""

import collections
import functools
import json
from fnmatch import fnmatchcase

import conformance_calls as calls
import layerzero as lz
import pytest
from layerzero.contracts import contracts
from layerzero.inspection import kernel_rows
from operation_cases import as_tuple, lines

LOST = ("device-side assert", "illegal memory access", "misaligned address", "unspecified launch failure")


def call(name, line, kernel):
    """Strict mode leaves out rows that say that a hidden NaN may show, where a case has one."""
    special = kernel in declared_to_show(name) and any(text in line for text in ("nan", "inf"))
    with lz.policy(strict_mode=special):
        result = calls.call_door(name, line, kernel, place=calls.on_device)
    moved = tuple(None if t is None else t.cpu() for t in as_tuple(result))
    return moved if isinstance(result, tuple) else moved[0]


@functools.cache
def declared_to_show(name):
    rules = ((k["kernel_id"], k["constraints"]) for k in kernel_rows(name))
    return {kernel for kernel, rows in rules if any(c["field"] == "policy.strict_mode" for c in rows)}


def kernels_of(name, globs=()):
    rows = [k for k in lz.list_kernels(name) if k.installed and k.platform in ("cuda", "any")]
    found = dict.fromkeys(k.kernel_id for k in rows if not k.kernel_id.startswith("tests."))
    return [k for k in found if not globs or any(fnmatchcase(k, glob) for glob in globs)]


@pytest.mark.parametrize("name", sorted(contracts()))
def test_every_kernel_of_the_device_agrees_with_fp64(name, record_property, pytestconfig):
    failures, ran = [], collections.Counter()
    kernels = kernels_of(name, pytestconfig.getoption("--kernel"))
    if not kernels:
        pytest.skip("no such kernel is installed")
    usable = [line for line in lines(name) if calls.engine_accepts(name, line)]
    for kernel in kernels:
        for line in usable:
            try:
                result = call(name, line, kernel)
            except (lz.NoKernelFoundError, lz.KernelRefusedError):  # by a rule; by an adapter, on values or addresses
                continue
            except Exception as error:
                if any(text in str(error) for text in LOST):
                    pytest.exit(f"the device is lost: {kernel} on {line}: {error}", returncode=3)
                failures.append(f"{kernel}: {line}\n    {type(error).__name__}: {error}")
                continue
            ran[kernel] += 1
            failures += [
                f"{kernel}: {line}\n    {text}"
                for text in calls.problems(name, line, result, calls.numerics_of(name)[kernel])
            ]
    record_property("pairs", json.dumps(ran))
    record_property("failed", len(failures))
    assert not failures, f"{len(failures)} of {ran.total()}\n" + "\n".join(failures[:40])
    unused = [k for k in kernels if k.startswith("cuda.") and not k.endswith(".sm80") and not ran[k]]
    assert not unused, f"no case admits {unused}"
