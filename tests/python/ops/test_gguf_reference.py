"""The torch reference of dequantize.gguf against the gguf package, bit for bit."""

import importlib.util
import pathlib

import pytest
import torch

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

PATH = pathlib.Path(__file__).parents[3] / "ops" / "dequantize" / "gguf.ref.py"
SPEC = importlib.util.spec_from_file_location("gguf_reference", PATH)
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)

FORMATS = {"q4_0": (18, "Q4_0"), "q4_1": (20, "Q4_1"), "q8_0": (34, "Q8_0")}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("source", ["quantised", "random bytes"])
def test_values_are_the_packages(name, source):
    block_bytes, qtype = FORMATS[name][0], gguf.GGMLQuantizationType[FORMATS[name][1]]
    random = np.random.default_rng(1)
    if source == "quantised":
        data = gguf.quants.quantize(random.normal(size=(7, 320)).astype(np.float32), qtype)
    else:
        data = random.integers(0, 256, size=(7, 10 * block_bytes), dtype=np.uint8)
        scales = data.reshape(7, 10, block_bytes)
        scales[..., 1] &= 0xBF  # float16 scales below 2: finite, subnormal ones among them
        scales[..., 3] &= 0xBF
    expected = gguf.quants.dequantize(data, qtype)
    got = MODULE.reference(torch.from_numpy(data), 320, format=name)
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got.numpy().view(np.uint32), expected.view(np.uint32))
    for dtype in ("bfloat16", "float16"):
        narrow = MODULE.reference(torch.from_numpy(data), 320, format=name, dtype=dtype)
        assert torch.equal(narrow, torch.from_numpy(expected).to(getattr(torch, dtype)))


def test_empty_rows_keep_their_shape():
    assert MODULE.reference(torch.zeros(0, 18, dtype=torch.uint8), 32, format="q4_0").shape == (0, 32)
    assert MODULE.reference(torch.zeros(4, 0, dtype=torch.uint8), 0, format="q8_0").shape == (4, 0)
