"""What cuobjdump prints of a library's kernels is read whole, and names are shown as in the source."""

import shutil

import kernel_resources
import pytest
from kernel_resources import Kernel

TEXT = """
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function _ZN2lz4NormIfEEvPT_:
  REG:47 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:860 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN2lz5ScaleEv:
  REG:255 STACK:168 SHARED:1024 LOCAL:8 CONSTANT[0]:860 TEXTURE:0 SURFACE:0 SAMPLER:0

Fatbin elf code:
================
arch = sm_80

Resource usage:
 Function _ZN2lz5ScaleEv:
  REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:360
"""
KERNELS = [
    Kernel("sm_90a", 47, 0, 0, 0, "_ZN2lz4NormIfEEvPT_"),
    Kernel("sm_90a", 255, 168, 1024, 8, "_ZN2lz5ScaleEv"),
    Kernel("sm_80", 40, 0, 0, 0, "_ZN2lz5ScaleEv"),
]


def test_each_function_of_each_architecture_is_a_kernel():
    assert kernel_resources.parse(TEXT) == KERNELS


def test_a_function_without_numbers_is_an_error():
    with pytest.raises(ValueError, match="3 functions, got 2"):
        kernel_resources.parse(TEXT.replace("REG:255", "REGISTERS:255"))


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="needs c++filt")
def test_names_are_demangled_without_parameters():
    assert [k.name for k in kernel_resources.demangled(KERNELS)] == ["lz::Norm<float>", "lz::Scale", "lz::Scale"]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void lz::F<(lz::Form)0, float>(lz::Rows<float>, int)", "lz::F<(lz::Form)0, float>"),
        ("lz::(anonymous namespace)::F(void (*)(int))", "lz::(anonymous namespace)::F"),
        ("plain", "plain"),
    ],
)
def test_parameters_are_the_last_parentheses(name, short):
    assert kernel_resources.without_parameters(name) == short


def test_a_missing_library_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["kernel_resources.py", str(tmp_path / "none.so")])
    with pytest.raises(SystemExit, match="build with nvcc"):
        kernel_resources.main()
