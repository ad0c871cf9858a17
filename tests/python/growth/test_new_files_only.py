"""A kernel and an operation are added to a copy of the tree by new files alone, and the library that is built has them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

OPERATION = {
    "ops/toy/double.h": """// toy.double: twice the input.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::toy_double {

enum Tensor { kInput, kOutput };

inline constexpr auto kVariants = std::to_array<Variant>({{"toy.double"}});
inline constexpr auto kParams = std::to_array<Param>({TensorParam("input", "..., n", kFloats, "what to double")});
inline constexpr auto kOutputs =
    std::to_array<Output>({{.name = "output", .shape = "..., n", .dtype = "input", .doc = "same shape as input"}});

inline constexpr Contract kContract = {
    .name = "double",
    .summary = "Twice the input.",
    .definition = "output = 2 * input",
    .source = "own",
    .replaces = "2 * input",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::toy_double
""",
    "ops/toy/double.ref.cpp": """// Reference of toy.double.
#include "ops/toy/double.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::toy_double;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < x.size(-1); ++i) out.SetRow(row, i, 2 * x.GetRow(row, i));
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.toy.double", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
""",
    "ops/toy/double_ref.py": '"""Torch reference of toy.double."""\n\n\ndef reference(input):\n    return 2 * input\n',
    "tests/ops/toy/double.cases": "input=f32[3,17]\ninput=bf16[1,64]\ninput=f64[0,4]\n",
}


def run(command: list[str], cwd: Path, **env: str) -> str:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The tree's own files, committed in a repository of its own."""
    folder = tmp_path_factory.mktemp("tree")
    listed = run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    run(["git", "init", "-q"], folder)
    run(["git", "add", "--all"], folder)
    run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qm", "before"], folder)
    return folder


def test_an_operation_and_a_kernel_are_new_files_alone(copy):
    for name, text in OPERATION.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
    run([sys.executable, "scripts/new_kernel.py", "toy.double", "mine"], copy)

    added = {*OPERATION, "kernels/toy/double/mine.cpp", "tests/kernels/toy/double/mine_test.cpp"}
    status = run(["git", "status", "--porcelain", "--untracked-files=all"], copy).splitlines()
    assert set(status) == {f"?? {name}" for name in added}, "something else had to change"
    pairs = subprocess.run([sys.executable, "scripts/check_pairs.py"], cwd=copy, capture_output=True, text=True)
    assert "toy" not in pairs.stdout

    # ccache finds most objects of the build that this test runs beside: paths below CCACHE_BASEDIR count as relative.
    ccache = {"CCACHE_BASEDIR": str(copy), "CCACHE_NOHASHDIR": "1"}
    off = [f"-DLZ_BUILD_{part}=OFF" for part in ("PYTHON", "TORCH", "BENCH", "TESTS")]
    run(["cmake", "--preset", "release", *off], copy, **ccache)
    run(["cmake", "--build", "build/release"], copy, **ccache)
    symbols = run(["nm", "build/release/lib/liblayerzero.so"], copy)
    for family in ("ops_toy_double_ref", "kernels_toy_double_mine"):
        assert family in symbols
    tables = "".join(p.read_text() for p in (copy / "build/release/gen").glob("*_table.inc"))
    assert "ops::toy_double::kContract" in tables
    assert "kernels::kernels_toy_double_mine" in tables
