"""Functions of modules for tvm-ffi as kernels: a module is compiled here by tvm-ffi's own tools."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm_ffi")
if shutil.which("ninja") is None or shutil.which("c++") is None:
    pytest.skip("needs ninja and a C++ compiler", allow_module_level=True)

import layerzero as lz  # noqa: E402
from layerzero.integrations.ffi_kernels import ffi_kernel  # noqa: E402

SOURCE = r"""
#include <cmath>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
void rms_norm(tvm::ffi::TensorView out, tvm::ffi::TensorView input, tvm::ffi::TensorView weight, double eps) {
  const int64_t width = weight.size(0), rows = input.numel() / width;
  const float *x = static_cast<const float*>(input.data_ptr()), *w = static_cast<const float*>(weight.data_ptr());
  float* y = static_cast<float*>(out.data_ptr());
  if (width == 13) TVM_FFI_THROW(ValueError) << "thirteen";
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += double(x[r * width + i]) * x[r * width + i];
    const double factor = 1 / std::sqrt(sum / width + eps);
    for (int64_t i = 0; i < width; ++i) y[r * width + i] = float(x[r * width + i] * factor * w[i]);
  }
}
void silu_and_mul(tvm::ffi::TensorView input, tvm::ffi::TensorView out) {
  const int64_t half = out.size(1), rows = out.size(0);
  const float* x = static_cast<const float*>(input.data_ptr());
  float* y = static_cast<float*>(out.data_ptr());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < half; ++i) {
      const float g = x[r * 2 * half + i];
      y[r * half + i] = g / (1 + std::exp(-g)) * x[(r * 2 + 1) * half + i];
    }
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    import tvm_ffi.cpp

    folder = str(tmp_path_factory.mktemp("module"))
    return tvm_ffi.cpp.build_inline(
        "lz_test", cpp_sources=SOURCE, functions=["rms_norm", "silu_and_mul"], build_directory=folder
    )


@pytest.fixture
def registered():
    made = []

    def make(operation, kernel_id, *rest, **options):
        ffi_kernel(
            operation, kernel_id, *rest, **{"supported_dtypes": ["float32"], "requires_contiguous": True} | options
        )
        made.append((operation, kernel_id))

    yield make
    for operation, kernel_id in made:
        lz.unregister_kernel(operation, kernel_id)


def add_rms_norm(registered, module, **options):
    arguments = ["out", "input", "weight", "eps"]
    registered("norm.rms", "ffi.rms_norm", module, "rms_norm", arguments=arguments, **options)


@pytest.mark.parametrize("shape", [(8,), (3, 5), (2, 3, 64)])
def test_a_function_is_a_kernel(registered, module, shape):
    add_rms_norm(registered, module, digest=hashlib.sha256(Path(module).read_bytes()).hexdigest())
    x, weight = torch.randn(shape), torch.randn(shape[-1])
    found = lz.rms_norm(x, weight, 1e-5, kernel="ffi.rms_norm")
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-5))
    (row,) = [k for k in lz.list_kernels("norm.rms") if k.kernel_id == "ffi.rms_norm"]
    assert (
        "tvm-ffi" in row.notes[-1] and row.library_version == hashlib.sha256(Path(module).read_bytes()).hexdigest()[:16]
    )


def test_an_output_of_another_shape(registered, module):
    def allocate(input):
        return input.new_empty(input.shape[0], input.shape[1] // 2)

    registered(
        "activation.silu_and_mul", "ffi.silu", module, "silu_and_mul", arguments=["input", "out"], allocate=allocate
    )
    x = torch.randn(3, 16)
    gate, up = x.chunk(2, -1)
    found = lz.silu_and_mul(x, kernel="ffi.silu")
    torch.testing.assert_close(found, torch.nn.functional.silu(gate) * up)


def test_what_is_not_stated_is_refused(registered, module):
    add_rms_norm(registered, module)
    with pytest.raises(lz.NoKernelFoundError, match="DTYPE_UNSUPPORTED|dtype"):
        lz.rms_norm(torch.ones(2, 8).double(), torch.ones(8).double(), kernel="ffi.rms_norm")


def test_an_error_of_the_function(registered, module):
    add_rms_norm(registered, module, priority=100)
    x, weight = torch.randn(2, 13), torch.ones(13)
    with pytest.raises(lz.KernelExecutionError, match="thirteen"):
        lz.rms_norm(x, weight, kernel="ffi.rms_norm")
    torch.testing.assert_close(lz.rms_norm(x, weight), torch.nn.functional.rms_norm(x, (13,), eps=1e-6))
    lz.reset_health()


def test_what_cannot_be_registered(registered, module, tmp_path):
    with pytest.raises(lz.KernelRefusedError, match="wanted 00, got"):
        add_rms_norm(registered, module, digest="00")
    with pytest.raises(lz.KernelRefusedError, match="cannot be read"):
        add_rms_norm(registered, tmp_path / "absent.so")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(lz.KernelRefusedError, match="no module for tvm-ffi"):
        add_rms_norm(registered, tmp_path / "text.so")
    with pytest.raises(lz.KernelRefusedError, match="no function absent"):
        registered("norm.rms", "ffi.x", module, "absent", arguments=["input"])
    with pytest.raises(lz.UnknownNameError, match="axis"):
        registered("norm.rms", "ffi.x", module, "rms_norm", arguments=["input", "axis"])
    for wrong in ([], ["out"], ["input", "input"], ["input", "out", "out"]):
        with pytest.raises(lz.InvalidRequestError):
            registered("norm.rms", "ffi.x", module, "rms_norm", arguments=wrong)


def test_the_package_is_named_where_it_is_missing(registered, module, monkeypatch):
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(lz.NotInstalledError, match="apache-tvm-ffi"):
        add_rms_norm(registered, module)
