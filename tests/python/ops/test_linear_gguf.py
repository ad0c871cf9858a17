"""linear_gguf's activations in int8 are rounded as the definition has it, by every kernel."""

import layerzero as lz
import numpy as np
import pytest
import torch
from every_kernel import every_kernel


def identity():
    """q8_0 blocks of the identity matrix: products give the rounded activations themselves."""
    blocks = np.zeros((32, 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    blocks[np.arange(32), 2 + np.arange(32)] = 1
    return torch.from_numpy(blocks)


def rounded(rows):
    """round(x * (127 / amax)) * (amax / 127), each operation in float32, the last not rounded."""
    amax = np.abs(rows).max(-1, keepdims=True)
    return np.float64(amax / np.float32(127)) * np.rint(rows * (np.float32(127) / amax))


@pytest.mark.parametrize("packed", [False, True])
def test_values_halfway_between_two_codes(packed):
    random = np.random.default_rng(1)
    rows = random.uniform(1, 2, (96, 32)).astype(np.float32)
    rows[:, 1:] = rows[:, :1] * (random.integers(-126, 126, (96, 31)) + 0.5) / 127
    arguments = {"input": torch.from_numpy(rows), "weight": identity(), "format": "q8_0", "activations": "int8"}
    if packed:
        arguments["packed"] = lz.linear_gguf_prepack(identity(), 32, "q8_0")
    for kernel, (got,) in every_kernel("linear_gguf", **arguments):
        np.testing.assert_allclose(got.numpy(), rounded(rows), rtol=1e-6, err_msg=kernel)


@pytest.mark.parametrize("format", ["q4_0", "q8_0", "q6_k"])
def test_activations_near_the_end_of_float32(format):
    """Sums of codes times their scale alone would leave it; what the weights make of them does not."""
    columns, size = {"q4_0": (32, 18), "q8_0": (32, 34), "q6_k": (256, 210)}[format]
    random = torch.Generator().manual_seed(2)
    weight = torch.randint(0, 12, (16, size), generator=random, dtype=torch.uint8)  # scales of at most 2e-4
    packed = lz.linear_gguf_prepack(weight, columns, format)
    rows = 3e37 * torch.rand(20, columns, generator=random).sign()
    values = lz.dequantize_gguf(weight, columns, format=format).double()
    want = torch.nn.functional.linear(rows.double(), values)
    assert want.abs().max() < 3e38
    for given in ({}, {"packed": packed}):
        call = {"input": rows, "weight": weight, "format": format, "activations": "int8"} | given
        for kernel, (got,) in every_kernel("linear_gguf", **call):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=0, msg=kernel)
