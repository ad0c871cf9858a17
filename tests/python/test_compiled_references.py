"""Compiled references: Inductor compiles here for real, with the C++ compiler. The class of calls is what is recorded, so a
handful of operations is taken for all; tests/gpu runs every operation on the device."""

import json
import os
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if shutil.which("g++") is None:
    pytest.skip("Inductor needs a C++ compiler", allow_module_level=True)

import layerzero as lz  # noqa: E402
from conformance_calls import call_door, engine_accepts, problems  # noqa: E402
from layerzero import _layerzero, backends  # noqa: E402
from layerzero.backends.inductor import recording, rows  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.jit import work  # noqa: E402
from operation_cases import few  # noqa: E402

EAGER = {"allow_sources": ["torch", "inductor"]}  # a machine without own kernels


def recorded(call, **options):
    """What is made of one call on a machine without own kernels."""
    with lz.policy(**EAGER), lz.compile_references(**options) as compiled:
        call()
    return compiled


@pytest.fixture(scope="module")
def rope():
    torch.manual_seed(0)
    x, table = torch.randn(2, 5, 4, 64), torch.randn(5, 64)
    compiled = recorded(lambda: lz.rope(x, table, table))
    (ready,) = compiled.wait(240)
    assert ready.state == "ready", ready.detail
    return x, table, ready


def reasons(kernel_id, *tensors, **given):
    (found,) = [c for c in lz.explain("rope", *tensors, **given).candidates if c.kernel_id == kernel_id]
    return {r.code for r in found.reasons}


def test_a_ready_class_is_chosen_before_the_eager_expression_and_computes_the_same(rope):
    x, table, ready = rope
    with lz.policy(**EAGER):
        assert lz.explain("rope", x, table, table).kernel_id == ready.kernel_id
        got = lz.rope(x, table, table)
    torch.testing.assert_close(got, lz.rope(x, table, table, kernel="torch.rope"), rtol=1e-5, atol=1e-5)
    # The control: with other values the result follows, so nothing of the recorded call is in it.
    torch.testing.assert_close(lz.rope(2 * x, table, table, kernel=ready.kernel_id), 2 * got, rtol=1e-5, atol=1e-5)


def test_an_own_kernel_stays_before_it(rope):
    x, table, _ = rope
    assert lz.explain("rope", x, table, table).kernel_id.startswith("hwy.")


@pytest.mark.parametrize(
    "change",
    [
        lambda x, t: ((x[:1], t, t), {}),
        lambda x, t: ((x.double(), t.double(), t.double()), {}),
        lambda x, t: ((x, t, t), {"interleaved": True}),
        lambda x, t: ((x, t, t), {"position_ids": torch.arange(5)}),
        lambda x, t: ((x.transpose(1, 2), t, t), {"layout": "BHSD"}),
    ],
)
def test_another_class_is_refused_as_not_compiled(rope, change):
    x, table, ready = rope
    tensors, given = change(x, table)
    assert {"JIT_DISABLED", "DTYPE_UNSUPPORTED", "LAYOUT_UNSUPPORTED"} & reasons(ready.kernel_id, *tensors, **given)
    assert reasons(ready.kernel_id, x, table, table) == set()


def test_what_no_rule_can_state_is_refused_by_the_kernel_itself(rope):
    x, table, ready = rope
    wide = torch.randn(2, 5, 4, 128)[..., :64]  # other strides
    with pytest.raises(lz.KernelRefusedError, match="as it was recorded"):
        lz.rope(wide, table, table, kernel=ready.kernel_id)
    with lz.policy(**EAGER):
        torch.testing.assert_close(
            lz.rope(wide, table, table), lz.rope(wide, table, table, kernel="torch.rope"), rtol=1e-5, atol=1e-5
        )


def test_a_call_of_no_compiled_class_says_what_to_do():
    x, table = torch.randn(1, 3, 2, 32), torch.randn(3, 32)
    assert reasons("inductor.posenc.rope", x, table, table) == {"JIT_DISABLED"}
    (waiting,) = [c for c in lz.explain("rope", x, table, table).candidates if c.kernel_id == "inductor.posenc.rope"]
    assert "compile_references" in waiting.reasons[0].message
    with pytest.raises(lz.NoKernelFoundError, match="not compiled"):
        lz.rope(x, table, table, kernel="inductor.posenc.rope")


def test_classes_that_differ_in_sizes_alone_become_one_for_any_size():
    made = [(torch.randn(2, s, 4, 64), torch.randn(s, 64)) for s in (11, 24, 37)]
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        for x, table in made:
            lz.rope(x, table, table)
    (ready,) = compiled.wait(240)
    assert ready.state == "ready", ready.detail
    assert ready.inputs == "float32[2,any,4,64] float32[any,64] float32[any,64]"
    for s in (2, 5, 100):  # none of them was recorded
        x, table = torch.randn(2, s, 4, 64), torch.randn(s, 64)
        with lz.policy(**EAGER):
            assert lz.explain("rope", x, table, table).kernel_id == ready.kernel_id
        got = lz.rope(x, table, table, kernel=ready.kernel_id)
        torch.testing.assert_close(got, lz.rope(x, table, table, kernel="torch.rope"), rtol=1e-5, atol=1e-5)
    x, table = torch.randn(3, 5, 4, 64), torch.randn(5, 64)
    assert reasons(ready.kernel_id, x, table, table) == {"JIT_DISABLED"}  # the batch was the same in all
    assert reasons(ready.kernel_id, x[:2, :1], table[:1], table[:1]) == {"JIT_DISABLED"}  # sizes of 1 are another trace
    strided = torch.randn(2, 5, 4, 128)[..., :64]
    with pytest.raises(lz.KernelRefusedError):
        lz.rope(strided, table, table, kernel=ready.kernel_id)


def test_numbers_with_a_fraction_belong_to_the_class():
    x = torch.randn(3, 8)
    compiled = recorded(lambda: lz.gated_activation(x, limit=0.5, alpha=1.5))
    (ready,) = compiled.wait(240)
    assert ready.state == "ready", ready.detail
    got = lz.gated_activation(x, limit=0.5, alpha=1.5, kernel=ready.kernel_id)
    torch.testing.assert_close(got, lz.gated_activation(x, limit=0.5, alpha=1.5))
    with pytest.raises(lz.KernelRefusedError):
        lz.gated_activation(x, limit=0.25, alpha=1.5, kernel=ready.kernel_id)


CASES = ["gated_activation", "merge_attention", "moe_route", "linear_quantized", "linear_gguf"]


@pytest.mark.parametrize("name", CASES)
def test_conformance_cases_of_compiled_references(name):
    """The first kinds of calls of operations whose expressions round, sort, gather and multiply, against FP64."""
    admitted = [line for line, _ in few(name, 2) if engine_accepts(name, line)]
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        for line in admitted:
            call_door(name, line, None)
    states = compiled.wait(400)
    assert states and {s.state for s in states} <= {"ready", "skipped"}, states
    ran = 0
    for state in [s for s in states if s.state == "ready"]:
        for line in admitted:
            try:
                result = call_door(name, line, state.kernel_id)
            except (lz.NoKernelFoundError, lz.KernelRefusedError):
                continue
            ran += 1
            assert problems(name, line, result) == [], (state, line)
    assert ran


def test_what_is_not_compiled_says_why():
    x = torch.randn(4, 8, dtype=torch.float64)
    logits = torch.randn(3, 50)
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        lz.rms_norm(x)
        lz.sample_topk(logits, 5, seed=3)
        lz.gated_activation(torch.randn(0, 8))
    found = {c.operation: c for c in compiled.calls()}
    assert {c.state for c in found.values()} == {"skipped"}
    assert "one function" in found["norm.rms"].detail
    assert "seed" in found["sampling.topk"].detail
    assert "empty" in found["activation.gated"].detail
    assert compiled.wait(0) == compiled.calls()


def test_what_cannot_be_traced_is_compiled_from_the_reference_or_reported(monkeypatch):
    x = torch.randn(2, 6)
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        lz.gated_activation(x)
    (call,) = compiled._calls.values()
    compiled.wait(240)

    def reads(*_):
        raise ValueError("planted")

    def made(width, state):
        facts = {"input": recording.TensorFacts("float32", (2, width), (width, 1))}
        planted = recording.Eager("tests.reads", reads)
        one = recording.Call(call.name, call.operation, "cpu", None, facts, call.scalars, planted)
        work.add([one])
        work.wait(one, None)
        assert one.state == state, one.detail
        return one

    ready = made(8, "ready")
    torch.testing.assert_close(
        lz.gated_activation(torch.ones(2, 8), kernel=ready.kernel_id), lz.gated_activation(torch.ones(2, 8))
    )
    monkeypatch.setattr(recording, "reference_of", lambda *_: recording.Eager("tests.reads", reads))
    assert "planted" in made(10, "failed").detail
    lz.gated_activation(torch.ones(2, 10))


def test_nothing_compiles_while_the_block_is_open_or_after_an_exception():
    x = torch.randn(2, 10)
    compiled = lz.compile_references()
    with lz.policy(**EAGER), pytest.raises(RuntimeError), compiled:
        got = lz.gated_activation(x)
        assert [c.state for c in compiled.calls()] == ["waiting"]
        raise RuntimeError
    torch.testing.assert_close(got, lz.gated_activation(x))
    assert not [k for k in lz.list_kernels("gated_activation") if "recorder" in k.kernel_id]


def test_the_block_notes_a_limited_number_of_classes():
    with lz.policy(**EAGER), lz.compile_references(limit=1) as compiled:
        for width in (4, 8):
            lz.sample_topk(torch.randn(1, width), 2, seed=3)
    assert len(compiled.calls()) == 1
    with pytest.raises(lz.InvalidRequestError, match="limit"):
        lz.compile_references(limit=0)


def test_what_was_compiled_is_loaded_by_the_next_process(tmp_path):
    """Two processes with one cache of LayerZero and caches of Inductor of their own: the second one compiles nothing."""
    program = (
        "import json, torch, layerzero as lz\nfrom layerzero.jit import work\n"
        "x, t = torch.ones(2, 3, 4, 8), torch.ones(3, 8)\n"
        f"with lz.policy(**{EAGER}), lz.compile_references() as compiled: lz.rope(x, t, t)\n"
        "(call,) = compiled.wait()\nassert call.state == 'ready', call.detail\n"
        f"with lz.policy(**{EAGER}): y = lz.rope(x, t, t, kernel=call.kernel_id)\n"
        "assert torch.equal(y, lz.rope(x, t, t))\nprint(work.counts().from_cache)\n"
    )
    for name, loaded in (("first", "0"), ("second", "1")):
        own = {"LAYERZERO_CACHE_DIR": str(tmp_path / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)}
        done = subprocess.run([sys.executable, "-c", program], env=os.environ | own, capture_output=True, text=True)
        assert done.stdout.split() == [loaded], done.stderr


def test_gradients_are_served_by_the_expression(rope):
    x, table, ready = rope
    with lz.policy(**EAGER):
        x = x.clone().requires_grad_()
        lz.rope(x, table, table).sum().backward()
    assert x.grad is not None
    assert "GRAD_UNSUPPORTED" in reasons(ready.kernel_id, x, table, table)


def test_a_reference_that_differs_in_strict_mode_is_not_used_there():
    eager = recording.Eager("torch.ref.posenc.rope", len, strict=False)
    facts = recording.TensorFacts("float32", (2, 3, 4, 8), (96, 32, 8, 1))
    call = recording.Call("rope", "posenc.rope", "cpu", "BSHD", {"input": facts}, {}, eager)
    fields = [c["field"] for c in rows.compiled(call, "x")["ops"]["posenc.rope"][0]["constraints"]]
    assert "policy.strict_mode" in fields
    call.eager = recording.Eager("torch.ref.posenc.rope", len)
    fields = [c["field"] for c in rows.compiled(call, "x")["ops"]["posenc.rope"][0]["constraints"]]
    assert "policy.strict_mode" not in fields


def test_code_is_for_the_device_that_it_was_traced_on(monkeypatch):
    from layerzero.backends.inductor import worker
    from layerzero.errors import KernelRefusedError
    from torch._subclasses.fake_tensor import FakeTensorMode

    def on(device):
        with FakeTensorMode():
            return torch.empty(2, 3, 4, 8, device=device)

    def call_on(device):
        given = {"input": on(device), "cos": None, "sin": None}
        eager = recording.Eager("torch.ref.posenc.rope", len)
        return recording.described(contracts()["rope"], "posenc.rope", given, "BSHD", eager)

    first, second = call_on("cuda:0"), call_on("cuda:1")
    assert (first.device, second.device) == ("cuda:0", "cuda:1")
    assert len(recording.merged([first, second])) == 2 and first.kernel_id == second.kernel_id
    monkeypatch.setattr(worker, "compiled", lambda call: lambda *values: call.device)
    try:
        worker.make_ready(first)
        kernel = backends._functions[f"layerzero.compiled:{first.kernel_id}"][0]
        assert kernel(on("cuda:0")) == "cuda:0"
        with pytest.raises(KernelRefusedError, match="cuda:1"):
            kernel(on("cuda:1"))
        worker.make_ready(second)
        assert (kernel(on("cuda:0")), kernel(on("cuda:1"))) == ("cuda:0", "cuda:1")
    finally:
        backends.remove_function(f"layerzero.compiled:{first.kernel_id}")
        del worker._ready[first.kernel_id]


@pytest.mark.parametrize(("device", "length"), [("h100", 6), ("b200", 7)])
def test_recorder_and_kernel_take_calls_of_a_gpu(device, length):
    """On a simulated device, as nothing runs there: no rule of the platform refuses them."""
    x, table = torch.randn(2, length, 4, 64), torch.randn(length, 64)

    def found():
        with lz.policy(**EAGER):
            return {
                c.kernel_id: c
                for c in lz.explain("rope", x, table, table, device=device, capturing=capturing).candidates
            }

    capturing = False
    with lz.policy(**EAGER), lz.compile_references() as compiled:
        lz.rope(x, table, table)
        assert found()["inductor.recorder.posenc.rope"].admissible
        capturing = True
        assert not found()["inductor.recorder.posenc.rope"].admissible
    compiled.wait(240)
    (call,) = compiled._calls.values()
    on_gpu = recording.Call(
        **{f: getattr(call, f) for f in ("name", "operation", "layout", "tensors", "scalars", "eager")}, device="cuda"
    )
    adapter = "tests.on_gpu"
    backends.add_function(adapter, len, rows.compiled(on_gpu, adapter))
    try:
        one = found()[on_gpu.kernel_id]
        assert one.admissible, one.reasons
    finally:
        backends.remove_function(adapter)


def test_every_operation_that_writes_nothing_has_a_row():
    known = {k["kernel_id"] for k in json.loads(_layerzero.kernels(None, False))}
    for contract in contracts().values():
        for operation in contract["operations"]:
            assert (f"inductor.{operation['id']}" in known) == rows.can_compile(contract)
    assert "inductor" in backends.libraries()


def test_importing_layerzero_imports_no_compiler():
    code = """
import sys, torch, layerzero as lz
lz.rms_norm(torch.ones(2, 8))
lz.explain("rms_norm", torch.ones(2, 8))
print([m for m in sys.modules if m.startswith("torch._inductor") or m == "layerzero.backends.inductor.worker"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_exact_results_and_written_arguments_are_not_compiled():
    names = {name for name, contract in contracts().items() if rows.can_compile(contract)}
    assert {"rope", "gated_activation", "linear_quantized"} <= names
    assert names.isdisjoint(
        {
            "quantize",
            "quantize_asymmetric",
            "cast",
            "kv_append_paged",
            "kv_rope_append_paged",
            "gated_delta_rule",
            "grouped_gemm",
        }
    )
