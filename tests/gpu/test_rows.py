"""Torch's rows and own kernels on the device against the references on the CPU; no call waits for the device."""

import copy

import layerzero as lz
import pytest
import row_calls
import torch
from conformance_calls import with_written
from layerzero.torch.references import call_reference

CALLS = list(row_calls.calls())


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def on_device(given):
    return {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def run(name, given, kernel):
    """The result with what was written, of a second call whose kernels are loaded, under the check for waits."""
    getattr(lz, name)(**on_device(given), kernel=kernel)
    placed = on_device(given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = getattr(lz, name)(**placed, kernel=kernel)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return tuple(t.cpu() for t in as_tuple(with_written(name, result, placed)))


def reference(name, given):
    given = copy.deepcopy(given)
    layout = given.pop("layout", None)
    return as_tuple(with_written(name, call_reference(name, given, layout), given))


@pytest.mark.parametrize("kernel", sorted({kernel for _, kernel, _ in CALLS}))
def test_rows_agree_with_the_references(kernel):
    ran = 0
    for name, _, given in (c for c in CALLS if c[1] == kernel):
        try:
            got = run(name, given, kernel)
        except lz.NoKernelFoundError:  # a row of CPUs, or of bfloat16 alone
            continue
        row_calls.compare(name, got, reference(name, given))
        ran += 1
    if not ran:
        pytest.skip("no call is admissible on this device")


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CALLS}))
def test_what_is_chosen_agrees_and_does_not_wait(name):
    for _, _, given in (c for c in CALLS if c[0] == name):
        row_calls.compare(name, run(name, given, None), reference(name, given))


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CALLS}))
def test_no_reference_is_chosen(name):
    references = []
    for _, kernel, given in (c for c in CALLS if c[0] == name):
        chosen = lz.which(name, **on_device(given))["kernel_id"]
        if ".ref." in chosen:
            references.append((kernel, chosen))
    assert not references
