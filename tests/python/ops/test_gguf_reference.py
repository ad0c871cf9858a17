"""The torch reference of dequantize.gguf against the gguf package, bit for bit."""

import pytest
import torch

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")

from layerzero.torch.references import reference_function  # noqa: E402

reference = reference_function("dequantize_gguf")

# Bytes of a block, its values, its type, and the high bytes of its float16 numbers.
FORMATS = {
    "q4_0": (18, 32, "Q4_0", (1,)),
    "q4_1": (20, 32, "Q4_1", (1, 3)),
    "q5_0": (22, 32, "Q5_0", (1,)),
    "q5_1": (24, 32, "Q5_1", (1, 3)),
    "q8_0": (34, 32, "Q8_0", (1,)),
    "q4_k": (144, 256, "Q4_K", (1, 3)),
    "q5_k": (176, 256, "Q5_K", (1, 3)),
    "q6_k": (210, 256, "Q6_K", (209,)),
}


def blocks_of(name, source, rows=7, blocks=10):
    block_bytes, values, kind, halves = FORMATS[name]
    qtype = gguf.GGMLQuantizationType[kind]
    random = np.random.default_rng(1)
    if source == "quantised":
        return gguf.quants.quantize(random.normal(size=(rows, blocks * values)).astype(np.float32), qtype), qtype
    data = random.integers(0, 256, size=(rows, blocks * block_bytes), dtype=np.uint8)
    for at in halves:
        data.reshape(rows, blocks, block_bytes)[..., at] &= 0xBF  # below 2: finite, subnormal ones among them
    return data, qtype


# The package quantises no K format.
@pytest.mark.parametrize("source", ["quantised", "random bytes"])
@pytest.mark.parametrize("name", FORMATS)
def test_values_are_the_packages(name, source):
    if source == "quantised" and name.endswith("_k"):
        pytest.skip("gguf has no quantiser for it")
    data, qtype = blocks_of(name, source)
    columns = 10 * FORMATS[name][1]
    expected = gguf.quants.dequantize(data, qtype)
    got = reference(torch.from_numpy(data), columns, format=name)
    assert got.dtype == torch.float32
    np.testing.assert_array_equal(got.numpy().view(np.uint32), expected.view(np.uint32))
    for dtype in ("bfloat16", "float16"):
        narrow = reference(torch.from_numpy(data), columns, format=name, dtype=dtype)
        assert torch.equal(narrow, torch.from_numpy(expected).to(getattr(torch, dtype)))


@pytest.mark.parametrize("name", FORMATS)
def test_kernels_give_the_packages_values(name):
    import layerzero as lz

    data, qtype = blocks_of(name, "random bytes")
    expected = gguf.quants.dequantize(data, qtype)
    for kernel in lz.list_kernels("dequantize.gguf"):
        if kernel.platform == "cuda":
            continue
        got = lz.dequantize_gguf(torch.from_numpy(data), expected.shape[1], format=name, kernel=kernel["kernel_id"])
        np.testing.assert_array_equal(got.numpy().view(np.uint32), expected.view(np.uint32))


def test_other_formats_are_refused_by_name():
    import layerzero as lz

    with pytest.raises(lz.LayerZeroError, match=r"q4_0.*q6_k.*got 'q2_k'"):
        lz.dequantize_gguf(torch.zeros(1, 84, dtype=torch.uint8), 256, format="q2_k")


def test_empty_rows_keep_their_shape():
    assert reference(torch.zeros(0, 18, dtype=torch.uint8), 32, format="q4_0").shape == (0, 32)
    assert reference(torch.zeros(4, 0, dtype=torch.uint8), 0, format="q8_0").shape == (4, 0)
