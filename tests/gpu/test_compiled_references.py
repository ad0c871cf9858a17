"""Compiled references on the device: every operation whose expression Inductor takes, against FP64; captures; a kernel that
needs less where memory is short.
"""

import json

import conformance_calls as calls
import layerzero as lz
import pytest
import torch
from layerzero.backends.inductor import rows
from layerzero.contracts import contracts
from layerzero.host.memory import free_bytes
from operation_cases import as_tuple, few

EAGER = {"allow_sources": ["torch", "inductor"]}  # no own kernels, no libraries
NAMES = [name for name, contract in contracts().items() if rows.can_compile(contract)]


def recorded(name, lines):
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        for line in lines:
            calls.call_door(name, line, None, place=calls.on_device)
    return compiled.wait(100)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_compiled_references_agree_with_fp64(name, record_property):
    lines = [line for line, _ in few(name, 2) if calls.engine_accepts(name, line)]
    states = recorded(name, lines)
    record_property("states", json.dumps([s._asdict() for s in states]))
    for state in states:
        print(f"{state.state:8} {state.seconds:6.2f} s  {state.kernel_id}  {state.inputs}  {state.detail[:160]}")
    failures, ran = [], 0
    for state in (s for s in states if s.state == "ready"):
        for line in lines:
            try:
                result = calls.call_door(name, line, state.kernel_id, place=calls.on_device)
            except (lz.NoKernelFoundError, lz.KernelRefusedError):
                continue
            ran += 1
            moved = tuple(None if t is None else t.cpu() for t in as_tuple(result))
            result = moved if isinstance(result, tuple) else moved[0]
            failures += [
                f"{line}\n    {text}"
                for text in calls.problems(name, line, result, calls.numerics_of(name).get(state.kernel_id, ""))
            ]
    assert not failures, "\n".join(failures)
    own = {operation["id"] for operation in contracts()[name]["operations"]}  # others may run within it
    ready = [s for s in states if s.state == "ready" and s.operation in own]
    assert ran >= len(ready)
    if not ready:
        pytest.skip("; ".join(f"{s.state}: {s.detail[:200]}" for s in states) or "other kernels serve these calls")


@pytest.fixture(scope="module")
def rope():
    x, table = torch.randn(2, 64, 8, 128, device="cuda", dtype=torch.bfloat16), torch.randn(64, 128, device="cuda")
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        lz.rope(x, table, table)
    (ready,) = compiled.wait(100)
    assert ready.state == "ready", ready.detail
    return x, table, ready.kernel_id


def test_a_compiled_reference_is_captured_and_replayed(rope):
    x, table, kernel = rope
    with lz.policy(**EAGER):
        assert lz.explain("rope", x, table, table, capturing=True).kernel_id == kernel
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = lz.rope(x, table, table, kernel=kernel)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(got, lz.rope(x, table, table, kernel="torch.rope"), rtol=1e-2, atol=1e-2)


def test_nothing_is_read_from_the_device_in_a_call(rope):
    x, table, kernel = rope
    lz.rope(x, table, table, kernel=kernel)
    torch.cuda.set_sync_debug_mode("error")
    try:
        lz.rope(x, table, table, kernel=kernel)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_free_memory_is_what_the_allocator_can_provide():
    free, _ = torch.cuda.mem_get_info()
    kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    with_it = free_bytes(0)
    del kept  # the allocator keeps the block, and returns it to the driver before it fails
    assert free_bytes(0) - with_it >= (1 << 30) - (1 << 22)
    assert abs(free_bytes(0) - free) < 1 << 30


def test_a_kernel_whose_workspace_is_not_to_be_had_gives_way():
    logits = torch.randn(4096, 128256, device="cuda", dtype=torch.bfloat16)
    with lz.policy(memory_headroom_mb=10**9):
        found = lz.explain("sample_topp", logits, 0.9, seed=1)
    refused = {c.kernel_id for c in found.candidates if any(r.code == "MEMORY_HEADROOM_EXCEEDED" for r in c.reasons)}
    plain = lz.explain("sample_topp", logits, 0.9, seed=1)
    assert not any(r.code == "MEMORY_HEADROOM_EXCEEDED" for c in plain.candidates for r in c.reasons)
    assert found.kernel_id is not None
    print("refused without headroom:", sorted(refused), "runs:", found.kernel_id)
