"""FlashInfer's compiled functions, called directly, give what its public functions give, and cost the host less."""

import time

import layerzero as lz
import pytest
import torch
from layerzero import _layerzero, backends

CALLS = {
    "rmsnorm": ("rows", "rms_norm"),
    "fused_add_rmsnorm": ("rows", "fused_add_rms_norm"),
    "layernorm": ("rows", "layer_norm"),
    "silu_and_mul": ("rows", "gated_activation"),
    "gelu_and_mul": ("rows", "gated_activation"),
    "gelu_tanh_and_mul": ("rows", "gated_activation"),
    "merge_state": ("cascade", "merge_attention"),
    "merge_states": ("cascade", "merge_partials"),
}


@pytest.fixture(scope="module")
def adapters():
    lz.list_kernels()
    if not backends.libraries()["flashinfer"]["installed"]:
        pytest.skip("flashinfer is not installed")
    assert _layerzero.prove_backend("flashinfer") == ""
    import flashinfer
    from layerzero.backends.flashinfer import cascade, compiled, rows

    if flashinfer.__version__ not in compiled.READ_IN:
        pytest.skip(f"flashinfer {flashinfer.__version__}: its public functions are called")
    return {"rows": rows, "cascade": cascade, "compiled": compiled}


def values(name, rows):
    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, dtype=dtype, device="cuda")

    x = random(rows, 1, 4096)
    return {
        "rmsnorm": lambda: (x, random(4096), 1e-5),
        "fused_add_rmsnorm": lambda: (x, random(rows, 1, 4096), random(4096), 1e-5),
        "layernorm": lambda: (x, 4096, random(4096, dtype=torch.float32), random(4096, dtype=torch.float32), 1e-5),
        "merge_state": lambda: (
            *(random(rows, 32, 128), random(rows, 32, dtype=torch.float32)),
            *(random(rows, 32, 128), random(rows, 32, dtype=torch.float32), None),
        ),
        "merge_states": lambda: (
            random(4, rows, 32, 128),
            random(4, rows, 32, dtype=torch.float32),
            *(None, None, "bfloat16"),
        ),
    }.get(name, lambda: (x, name.removesuffix("_and_mul")))()


def both(adapters, monkeypatch, name, use):
    """(use(adapter) with the compiled function, use(adapter) with the public one)."""
    place, function = CALLS[name]
    compiled = adapters["compiled"]
    if compiled.compiled(name, torch.empty(1, device="cuda")) is None:
        assert name in compiled.NORMS, "only norms in the CuTe DSL stay with the public function"
        pytest.skip("FlashInfer computes its norms in the CuTe DSL here")
    direct = use(getattr(adapters[place], function))
    monkeypatch.setattr(adapters[place], "compiled", lambda *_: None)
    return direct, use(getattr(adapters[place], function))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_both_ways_give_the_same_bits(adapters, monkeypatch, name, rows):
    given = values(name, rows)
    other = torch.cuda.Stream()  # the function runs on torch's current stream

    def use(adapter):
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            found = adapter(*given)
        torch.cuda.current_stream().wait_stream(other)
        return found if isinstance(found, tuple) else (found,)

    direct, public = both(adapters, monkeypatch, name, use)
    assert all(torch.equal(a, b) for a, b in zip(direct, public, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_the_compiled_function_costs_the_host_less(adapters, monkeypatch, name, capsys):
    given = values(name, 1)

    def use(adapter):
        times = []
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(20):
                adapter(*given)
            times.append((time.perf_counter() - begin) / 20)
        return min(times) * 1e6

    direct, public = both(adapters, monkeypatch, name, use)
    with capsys.disabled():
        print(f"\n{name}: {direct:.1f} us directly, {public:.1f} us by the public function")
    assert direct < public
