"""LayerZero's CPU kernels as a kernel of the Hub: the layout that scripts/hub_kernel.py writes, loaded by `kernels` itself."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path(os.path.realpath(Path(lz.__file__).parent / "liblayerzero.so")).parent
NEIGHBOURS = Path(sys.prefix) / "neighbours"
USE = """
import sys, torch
from pathlib import Path
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, register_kernel_mapping, use_kernel_forward_from_hub

@use_kernel_forward_from_hub("RMSNorm")
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.randn(64)), 1e-5

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, (64,), self.weight, self.eps)

folder = Path(sys.argv[1])
kernel = get_local_kernel(folder)
x, cos, sin = torch.randn(3, 64), torch.rand(5, 16), torch.rand(5, 16)
gate, up = x.chunk(2, -1)
assert torch.allclose(kernel.silu_and_mul(x), torch.nn.functional.silu(gate) * up, atol=1e-6)
assert torch.allclose(kernel.activation(x, "gelu"), torch.nn.functional.gelu(x), atol=1e-6)
heads = torch.randn(1, 2, 5, 16)
turned = torch.cat([-heads[..., 8:], heads[..., :8]], -1)
found = kernel.layers.rotary_pos_emb()(heads, heads, cos, sin)[0]
assert torch.allclose(found, heads * cos + turned * sin, atol=1e-6)
register_kernel_mapping({"RMSNorm": {"cpu": LocalLayerRepository(folder, layer_name="RMSNorm")}})
with torch.no_grad():
    own = Norm()
    expected = own(x)
    kernelize(own, mode=Mode.INFERENCE, device="cpu", use_fallback=False)
    assert own.forward.__func__ is kernel.layers.RMSNorm.forward
    assert torch.allclose(own(x), expected, atol=1e-6)
assert "layerzero" not in sys.modules, "it runs without the package"
print("served")
"""


def script(out, *options, path=()):
    command = [sys.executable, ROOT / "scripts/hub_kernel.py", out, *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_kernels_loads_it_without_the_package(tmp_path):
    if not (NEIGHBOURS / "kernels").is_dir():
        pytest.skip("needs requirements/neighbours.txt in .venv/neighbours: make setup")
    done = script(tmp_path / "published", "--libraries", LIBRARIES, "--no-check")
    assert done.returncode == 0, done.stderr
    variant = Path(done.stdout.strip())
    assert variant.name == "torch-stable-abi211-cpu-x86_64-linux"
    assert json.loads((variant / "metadata.json").read_text())["backend"] == {"type": "cpu"}
    only = tmp_path / "path"
    only.mkdir()
    for found in NEIGHBOURS.glob("kernels*"):
        (only / found.name).symlink_to(found)
    used = subprocess.run(
        [sys.executable, "-c", USE, tmp_path / "published"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(only)},
    )
    assert used.stdout.strip() == "served", used.stderr[-3000:]


def checker():
    spec = importlib.util.find_spec("kernel_abi_check")
    return Path(str(spec.origin)).parents[1] if spec else None


@pytest.mark.skipif(checker() is None, reason="needs kernel-abi-check: pip install kernel-abi-check")
def test_what_the_checker_says(tmp_path):
    """Libraries of this machine's compiler may need a later glibc, which the checker says by symbol; nothing is of Python."""
    done = script(tmp_path, "--libraries", LIBRARIES, path=[checker()])
    assert done.returncode in (0, 1), done.stderr
    assert "not of Python's stable ABI" not in done.stderr
    assert done.returncode == int(bool(done.stderr.strip()))
    wrong = [line for line in done.stderr.splitlines() if "later than manylinux_2_28" not in line]
    assert not wrong


@pytest.mark.skipif(checker() is None, reason="needs kernel-abi-check: pip install kernel-abi-check")
def test_the_portable_wheel_passes(tmp_path):
    wheels = sorted((ROOT / "dist").glob("*manylinux_2_28_x86_64.whl"))
    if not wheels:
        pytest.skip("needs the portable wheel: make wheel")
    done = script(tmp_path, "--wheel", wheels[-1], path=[checker()])
    assert done.returncode == 0, done.stderr


def test_a_missing_checker_is_an_answer(tmp_path):
    """Also where it is installed: a module of that name that cannot be imported stands before it."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path/kernel_abi_check.py").write_text("raise ModuleNotFoundError('none')")
    done = script(tmp_path / "out", "--libraries", LIBRARIES, path=[tmp_path / "path"])
    assert done.returncode == 2 and "kernel-abi-check is not installed" in done.stderr
