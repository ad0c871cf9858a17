"""Every operation in graphs: make_fx, torch.compile without breaks, export, AOTInductor; and no new graph for a longer
sequence. Walks over the operations' own cases."""

import functools

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.torch import operators  # noqa: E402
from operation_cases import NAMES, copied, few, same, tensors_of  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

if not operators.register():
    pytest.skip("this build has no torch operators", allow_module_level=True)

every_operation = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _fresh():
    yield
    torch._dynamo.reset()


def served(name, count):
    """(line, tensors by name, function of the tensors, its result) of cases that some kernel serves."""
    for line, arguments in few(name, largest=5000):
        if count == 0:
            return
        tensors = tensors_of(arguments)
        rest = {k: v for k, v in arguments.items() if k not in tensors}
        try:
            with torch.no_grad():
                want = getattr(lz, name)(**copied(tensors), **rest)
        except lz.LayerZeroError:
            continue
        if want is not None:  # what writes into its arguments has tests of its own
            count -= 1
            yield line, tensors, functools.partial(getattr(lz, name), **rest), want


def of_dict(function):
    return lambda tensors: function(**tensors)


def calls_of(graph):
    return [n.target for n in graph.nodes if n.op == "call_function" and "layerzero" in str(n.target)]


@every_operation
@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
def test_make_fx_sees_one_node(name, tracing_mode):
    for _, tensors, function, want in served(name, 2):
        with torch.no_grad():
            graph = make_fx(of_dict(function), tracing_mode=tracing_mode)(tensors)
            assert len(calls_of(graph.graph)) == 1
            same(graph(tensors), want)


@every_operation
def test_compiles_into_one_graph(name):
    for _, tensors, function, want in served(name, 2):
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(of_dict(function), fullgraph=True, backend=counter)
        with torch.no_grad():
            same(compiled(copied(tensors)), want)
        assert counter.frame_count == 1
        torch._dynamo.reset()


@every_operation
@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.full)])
def test_exports(name, strict):
    for _, tensors, function, want in served(name, 1):

        class Module(torch.nn.Module):
            def forward(self, tensors):
                return function(**tensors)  # noqa: B023

        with torch.no_grad():
            program = torch.export.export(Module(), (tensors,), strict=strict)
            assert len(calls_of(program.graph)) == 1
            same(program.module()(tensors), want)


def test_a_layout_that_is_not_named_is_found_as_in_eager_mode():
    """Eight heads of four positions, keys of five: only one reading has equal head counts."""
    q, k = torch.randn(1, 8, 4, 16), torch.randn(1, 8, 5, 16)
    for tensors in ((q, k, k), tuple(t.transpose(1, 2).contiguous() for t in (q, k, k))):
        want = lz.attention(*tensors, return_lse=True)
        for dynamic in (False, True):
            compiled = torch.compile(
                lambda *t: lz.attention(*t, return_lse=True), fullgraph=True, backend="aot_eager", dynamic=dynamic
            )
            same(compiled(*tensors), want)
            torch._dynamo.reset()


@pytest.mark.parametrize("grows", ["keys", "rows", "batch"])
def test_a_growing_sequence_compiles_at_most_twice(grows):
    """Once with the first sizes, once more with that size as a symbol; then never again."""

    def layer(x, w, q, k, v):
        x = lz.swiglu(lz.linear(lz.rms_norm(x, w), w.expand(96, 96)), x)
        return x, lz.attention(q, k, v, layout="BSHD")

    counter = CompileCounterWithBackend("aot_eager")
    step = torch.compile(layer, fullgraph=True, backend=counter)
    with torch.no_grad():
        for n in range(5, 13):
            rows, batch, keys = (n if grows == g else fixed for g, fixed in (("rows", 4), ("batch", 2), ("keys", 9)))
            x, w = torch.randn(rows, 96), torch.randn(96)
            q, kv = torch.randn(batch, 3, 4, 16), torch.randn(batch, keys, 2, 16)
            for a, b in zip(step(x, w, q, kv, kv), layer(x, w, q, kv, kv), strict=True):
                torch.testing.assert_close(a, b)
    assert counter.frame_count <= 2


# ---- code generation: needs a C++ compiler and most of a minute


def small(x, w, g):
    return lz.rms_norm(lz.linear(x + 1, w), g) * 2


TENSORS = (torch.randn(3, 64), torch.randn(64, 64), torch.randn(64))


@pytest.mark.full
def test_inductor():
    with torch.no_grad():
        compiled = torch.compile(small, fullgraph=True)
        torch.testing.assert_close(compiled(*TENSORS), small(*TENSORS))
    leaves = [t.clone().requires_grad_() for t in TENSORS]
    torch.compile(small, fullgraph=True)(*leaves).sum().backward()
    again = [t.clone().requires_grad_() for t in TENSORS]
    small(*again).sum().backward()
    for a, b in zip(leaves, again, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_aot_inductor(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x, w, g):
            return small(x, w, g)

    with torch.no_grad():
        program = torch.export.export(Module(), TENSORS, dynamic_shapes=({0: torch.export.Dim("rows")}, None, None))
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
        loaded = torch._inductor.aoti_load_package(package)
        for rows in (3, 7):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(loaded(x, *TENSORS[1:]), small(x, *TENSORS[1:]))
