"""lz.require and `layerzero run`: what ran instead of the required kernels."""

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

X, W = torch.arange(32, dtype=torch.float32).view(4, 8), torch.full((8,), 2.0)


@pytest.fixture
def planted():
    """Registers kernels of norm.rms that are selected before all others."""
    names = []

    def plant(name, function):
        lz.register_kernel("norm.rms", name, supported_dtypes=["float32"], priority=100)(function)
        names.append(name)

    yield plant
    for name in names:
        lz.unregister_kernel("norm.rms", name)


def raising(error, times):
    left = [times]

    def kernel(input, weight, eps, weight_offset=None):
        if left[0] > 0:
            left[0] -= 1
            raise error
        return torch.nn.functional.rms_norm(input, (8,), weight, eps)

    return kernel


def call(times=1):
    for _ in range(times):
        lz.rms_norm(X, W)


def test_require_lists_what_ran_instead(planted):
    planted("tests.bad", raising(RuntimeError("planted"), 1))
    failed = pytest.raises(lz.RequirementError, match="after another kernel failed")
    with failed as caught, lz.require(no_fallback=True):
        call()
    assert [(run["fallback"], run["runs"]) for run in caught.value.ran] == [(True, 1)]
    with lz.require(kernels=["tests.bad"], no_fallback=True, operations=["rms_*"]):
        call()
    others = pytest.raises(lz.RequirementError, match=r"(?s)wanted only hwy\.\*.*rms_norm: tests\.bad 2 times")
    with others, lz.require(kernels=["hwy.*"]):
        call(2)
    with lz.require(kernels="tests"):
        call()
    with lz.require(kernels=["hwy.*"], operations=["softmax"]):
        call()


def test_require_counts_references():
    with pytest.raises(lz.RequirementError, match="a reference"), lz.require(no_fallback=True), lz.disabled():
        call()


def test_require_keeps_the_error_of_its_block():
    with pytest.raises(KeyError), lz.require(kernels=["none.*"]):
        call()
        raise KeyError
    with pytest.raises(lz.InvalidRequestError):
        lz.require()
    with pytest.raises(lz.InvalidRequestError):
        lz.require(kernels=[])


SCRIPT = """
import sys, torch, layerzero as lz
print(sys.argv[1:])
lz.rms_norm(torch.ones(2, 8), torch.ones(8))
"""


def test_layerzero_run(tmp_path, capfd):
    pytest.importorskip("typer")
    from layerzero import cli

    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    assert cli.run(["run", "--require", "hwy.*", "--no-fallback", str(script), "--json", "1"]) == 0
    assert capfd.readouterr().out == "['--json', '1']\n"
    assert cli.run(["run", "--require", "none.*", str(script)]) == 1
    assert "got instead:\n  rms_norm: hwy." in capfd.readouterr().err
    assert cli.run(["run", str(script)]) == 2
    assert cli.run(["run", "--no-fallback", "nowhere.py"]) == 2
