"""Models that call torch.ops.layerzero.* through torch.export, and as AOTInductor packages in Python."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402


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
