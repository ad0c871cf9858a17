"""A library of kernels that a test writes, and every way to call its operation."""

import importlib
import itertools
import sys

import layerzero as lz
import pytest
import torch
from layerzero import backends
from layerzero.program import ProgramBuilder, Rows

NUMBERS = itertools.count()
X, W = torch.randn(4, 32), torch.ones(32)
OWN = "hwy.norm.rms"
WORKS = """
import layerzero as lz, torch
def rms_norm(input, weight, eps, weight_offset=None):
    calls.append(1)
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)
calls = []
"""


def descriptor(name, probe=None, **head):
    row = {
        "kernel_id": f"{name}.norm",
        "adapter": f"{name}:rms_norm",
        "dtypes": ["float32"],
        "requires_layouts": ["any"],
        "accepts": ["weight"],
        "requires_contiguous": False,
        "priority": 100,
    }
    extra = {"probe": f"{name}:{probe}"} if probe else {}
    return {
        "schema_version": "1.0",
        "backend": name,
        "backend_version": "1",
        "platform": "any",
        "requires": [{"import": name, "install": f"pip install {name}"}],
        "ops": {"norm.rms": [row]},
        **extra,
        **head,
    }


@pytest.fixture
def library(tmp_path, monkeypatch):
    """library(source, probe=) -> the name of a module with that source whose kernel is the first choice of rms_norm."""
    monkeypatch.syspath_prepend(tmp_path)
    lz.configure(isolation={"try_imports": False})  # each library would cost seconds; tests/python/isolation tries them
    lz.rms_norm(X, W)
    made = []

    def make(source, probe=None, **head):
        name = f"lz_library_{next(NUMBERS)}"
        if source is not None:
            (tmp_path / f"{name}.py").write_text(source)
            importlib.invalidate_caches()
        backends.register(descriptor(name, probe, **head))
        made.append(name)
        return name

    yield make
    for name in made:
        lz._layerzero.unregister(f"{name}:rms_norm")
        backends._libraries.pop(name, None)
        sys.modules.pop(name, None)


def norm_program():
    make = ProgramBuilder()
    x = make.input()
    twice, y = make.rows(32, "float32"), make.output(32, "float32")
    make.add("elementwise", [Rows(twice, (32,))], input=x, other=x, function="add")
    make.add("rms_norm", [Rows(y, (32,))], input=Rows(twice, (32,)), weight=make.weight(None), eps=1e-6)
    return make.build()


def run_program():
    x, y = torch.randn(1, 4, 32), torch.empty(1, 4, 32)
    norm_program().run((x,), (y,))
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x + x, (32,), None, 1e-6))


BINDINGS = {
    "function": lambda: lz.rms_norm(X, W),
    "prepared": lambda: lz.prepare("rms_norm", X, W)(X, W),
    "operator": lambda: torch.ops.layerzero.rms_norm(X, W),
    "inference": lambda: torch.inference_mode()(torch.ops.layerzero.rms_norm)(X, W),
    "program": run_program,
}
