"""Models that call torch.ops.layerzero.* through torch.export, and as AOTInductor packages in Python and in C++."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.torch.operators import LIBRARY  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/aoti"


class Block(torch.nn.Module):
    """Norm, product, gated activation and a residual, by LayerZero's operators."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.norm = torch.nn.Parameter(torch.rand(64, generator=generator))
        self.up = torch.nn.Parameter(torch.randn(256, 64, generator=generator) / 8)
        self.down = torch.nn.Parameter(torch.randn(64, 128, generator=generator) / 8)

    def forward(self, x):
        rows = lz.rms_norm(x, self.norm, 1e-6)
        rows = lz.silu_and_mul(lz.linear(rows, self.up))
        return torch.sin(x) + lz.linear(rows, self.down)


@pytest.fixture(scope="module")
def exported():
    with torch.no_grad():
        return torch.export.export(
            Block().eval(), (torch.ones(2, 64),), dynamic_shapes={"x": {0: torch.export.Dim("n")}}
        )


def operators_of(program):
    return [str(node.target) for node in program.graph.nodes if "layerzero" in str(node.target)]


def test_export_round_trip(exported, tmp_path):
    path = tmp_path / "block.pt2"
    torch.export.save(exported, path)
    again = torch.export.load(path)
    assert operators_of(again) == operators_of(exported)
    assert [name.split(".")[1] for name in operators_of(again)] == ["rms_norm", "linear", "silu_and_mul", "linear"]
    x, block = torch.randn(5, 64), Block().eval()
    with torch.no_grad():
        torch.testing.assert_close(again.module()(x), block(x))


@pytest.fixture(scope="module")
def package(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("aoti") / "block.pt2"
    with torch.no_grad():
        return torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


@pytest.mark.full
def test_a_package_runs_in_python(package):
    x, block = torch.randn(5, 64), Block().eval()
    with torch.no_grad():
        torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), block(x))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not shutil.which("cmake"):
        pytest.skip("no cmake to build examples/aoti with")
    folder = tmp_path_factory.mktemp("program")
    torch_is = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    subprocess.run(["cmake", "-S", EXAMPLE, "-B", folder, torch_is, "-DCMAKE_BUILD_TYPE=Release"], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    return folder / "aoti_example"


def run(program, library, package):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LAYERZERO"))}
    command = [program, library, package, "5", "64"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.full
def test_a_package_runs_in_a_program_without_python(package, program):
    done = run(program, LIBRARY.resolve(), package)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        wanted = Block().eval()(torch.ones(5, 64)).sum().item()
    assert float(done.stdout.split()[0]) == pytest.approx(wanted, rel=1e-5)
    loaded = subprocess.run(["ldd", program, LIBRARY.resolve()], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu.so" in loaded
    assert "libpython" not in loaded


@pytest.mark.full
def test_the_program_says_which_library_has_no_operators(package, program):
    done = run(program, LIBRARY.resolve().with_name("liblayerzero.so"), package)
    assert done.returncode == 1
    assert "no layerzero_torch_register" in done.stderr
