"""make new-kernel: two files, nothing else touched, refusals that say what to type."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

CONTRACT = """
inline constexpr auto kVariants = std::to_array<Variant>({{"toy.scale"}, {"toy.scale.inplace", kWhen}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., hidden", Mask(DType::kF32), "what to scale"),
    OptionalTensor("weight", "hidden", kFloats, "gain"),
});
inline constexpr auto kOutputs = std::to_array<Output>({{.name = "output", .shape = "..., hidden"}});
"""


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "ops/toy").mkdir(parents=True)
    (tmp_path / "ops/toy/scale.h").write_text(CONTRACT)
    return tmp_path


def new_kernel(root: Path, operation: str, name: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts/new_kernel.py"), operation, name, "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def files(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def test_writes_exactly_two_files(tree):
    before = files(tree)
    done = new_kernel(tree, "toy.scale", "mine")
    assert done.returncode == 0, done.stderr
    assert files(tree) - before == {"kernels/toy/scale/mine.cpp", "tests/kernels/toy/scale/mine_test.cpp"}
    assert (tree / "ops/toy/scale.h").read_text() == CONTRACT
    kernel = (tree / "kernels/toy/scale/mine.cpp").read_text()
    assert '.id = "mine.toy.scale"' in kernel
    assert "Mask(DType::kF32)" in kernel
    assert "input [..., hidden]\n//   weight [hidden], optional" in kernel
    assert all("@" not in (tree / f).read_text() for f in files(tree) - before)


def test_a_variant_uses_the_contract_that_has_it(tree):
    assert new_kernel(tree, "toy.scale.inplace", "mine").returncode == 0
    kernel = (tree / "kernels/toy/scale/inplace/mine.cpp").read_text()
    assert '#include "ops/toy/scale.h"' in kernel
    assert "ops_toy_scale_ref" in kernel


@pytest.mark.parametrize(
    ("operation", "name", "said"),
    [
        ("toy.unknown", "mine", "toy.scale, toy.scale.inplace"),
        ("toy.scale", "Mine", "lower case"),
        ("toy.scale", "../mine", "lower case"),
        ("toy.scale", "ref", "not ref"),
        ("", "mine", "toy.scale"),
    ],
)
def test_refuses_and_says_what_is_wanted(tree, operation, name, said):
    before = files(tree)
    done = new_kernel(tree, operation, name)
    assert done.returncode != 0
    assert said in done.stderr
    assert files(tree) == before


def test_never_overwrites(tree):
    new_kernel(tree, "toy.scale", "mine")
    kernel = tree / "kernels/toy/scale/mine.cpp"
    kernel.write_text("own work")
    done = new_kernel(tree, "toy.scale", "mine")
    assert done.returncode != 0
    assert "exists" in done.stderr
    assert kernel.read_text() == "own work"
