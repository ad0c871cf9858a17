"""Own kernels that begin before those before them have ended: a chain of them gives, bit for bit, what it gives when the
device ends each kernel before the next one begins."""

import ctypes
from pathlib import Path

import layerzero as lz
import pytest
import torch

PRODUCTS = ["cuda.mlp.linear", "cuda.mlp.linear.long"]
HIDDEN, WIDE, HEADS, KV_HEADS, SIZE, CONTEXT = 1024, 4096, 16, 4, 64, 300
REPEATS = 200


def numbers(*shape, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cuda") / shape[-1] ** 0.5).bfloat16()


@pytest.fixture(autouse=True)
def switch():
    library = ctypes.CDLL(str(Path(lz.__file__).parent / "liblayerzero_cuda.so"))
    library.lz_cuda_dependent_launches(1)
    yield library.lz_cuda_dependent_launches
    library.lz_cuda_dependent_launches(0)


def repeated(run, is_captured):
    """What runs `run` again: itself, or the replay of a graph of it. Returns its result."""
    if not is_captured:
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def again():
        graph.replay()
        return result

    return again


class Layer:
    """A decoder's layer by calls of own kernels; `between` runs after each of them."""

    def __init__(self, rows, product):
        self.rows, self.product = rows, product
        qkv = (HEADS + 2 * KV_HEADS) * SIZE
        self.weights = numbers(qkv, HIDDEN), numbers(HIDDEN, HIDDEN), numbers(2 * WIDE, HIDDEN), numbers(HIDDEN, WIDE)
        self.gain = torch.rand(HIDDEN, device="cuda").bfloat16()
        self.cache = [numbers(rows, CONTEXT + 1, KV_HEADS, SIZE, seed=seed) for seed in (1, 2)]
        angles = torch.rand(rows, SIZE, device="cuda")
        self.tables = angles.cos().bfloat16(), angles.sin().bfloat16()
        self.slots = torch.arange(rows, device="cuda") * (CONTEXT + 1) + CONTEXT
        self.lengths = torch.full((rows,), CONTEXT + 1, device="cuda", dtype=torch.int32)
        self.pages = torch.arange(rows, device="cuda", dtype=torch.int32)[:, None]

    def run(self, x, between=lambda: None):
        def then(result):
            between()
            return result

        def product(given, weight):
            return then(lz.linear(given, weight, kernel=self.product))

        qkv, out, up, down = self.weights
        for _ in range(2):
            normed = then(lz.rms_norm(x, self.gain, 1e-6))
            q, k, v = product(normed, qkv).split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], -1)
            q, k, v = (part.unflatten(-1, (-1, SIZE)) for part in (q, k, v))
            q = then(lz.kv_rope_append_paged(q, k, v, *self.tables, *self.cache, self.slots, layout="NHD"))
            mixed = then(lz.paged_attention(q[:, None], *self.cache, self.pages, self.lengths, scale=SIZE**-0.5))
            mixed = product(mixed.reshape(self.rows, -1), out)
            normed, x = then(lz.fused_add_rms_norm(mixed, x, self.gain, 1e-6))
            gate, above = product(normed, up).chunk(2, -1)
            x = product(then(lz.swiglu(gate, above)), down)
        return x


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_chain_eager_and_captured(rows, product):
    layer = Layer(rows, product)
    inputs = [numbers(rows, HIDDEN, seed=10 + i) for i in range(8)]
    expected = [layer.run(x, torch.cuda.synchronize).clone() for x in inputs]
    for repeat in range(REPEATS // 4):
        found = [layer.run(x) for x in inputs]
        assert all(map(torch.equal, found, expected)), repeat
    x = torch.empty_like(inputs[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layer.run(x)
    for repeat in range(REPEATS):
        for given, wanted in zip(inputs, expected, strict=True):
            x.copy_(given)
            graph.replay()
            assert torch.equal(result, wanted), repeat


@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_weight_that_the_kernel_before_writes(product, is_captured):
    sources = [numbers(WIDE, HIDDEN, seed=i) for i in range(4)]
    x, gain, weight = numbers(1, HIDDEN), torch.ones(HIDDEN, device="cuda").bfloat16(), numbers(WIDE, HIDDEN)
    given = torch.empty_like(sources[0])

    def run(between=lambda: None):
        lz.rms_norm(given, gain, 1e-6, out=weight, kernel="cuda.norm.rms")
        between()
        return lz.linear(x, weight, kernel=product)

    expected = []
    for source in sources:
        given.copy_(source)
        expected.append(run(torch.cuda.synchronize).clone())
    assert not torch.equal(expected[0], expected[1])
    again = repeated(run, is_captured)
    for repeat in range(REPEATS):
        given.copy_(sources[repeat % 4])
        assert torch.equal(again(), expected[repeat % 4]), repeat


@pytest.mark.parametrize("is_captured", [False, True])
def test_an_input_that_the_kernel_after_writes(is_captured):
    first, second, gain = numbers(1, WIDE), numbers(1, WIDE, seed=1), torch.ones(WIDE, device="cuda").bfloat16()
    weight, x = numbers(HIDDEN, WIDE, seed=2), torch.empty_like(first)
    expected = lz.linear(first, weight, kernel=PRODUCTS[0]).clone()

    def run():
        x.copy_(first)
        result = lz.linear(x, weight, kernel=PRODUCTS[0])
        for _ in range(3):
            lz.rms_norm(second, gain, 1e-6, out=x)
        return result

    again = repeated(run, is_captured)
    for repeat in range(REPEATS):
        assert torch.equal(again(), expected), repeat


def test_streams_of_a_capture_that_part_and_join():
    weights = [numbers(WIDE, HIDDEN, seed=i) for i in range(3)]
    gain, x = torch.ones(HIDDEN, device="cuda").bfloat16(), numbers(1, HIDDEN)
    sides = [torch.cuda.Stream() for _ in range(2)]

    def run(between=lambda: None):
        normed = lz.rms_norm(x, gain, 1e-6)
        between()
        main, found = torch.cuda.current_stream(), []
        for stream, weight in zip(sides, weights[1:], strict=True):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                found.append(lz.linear(normed, weight, kernel=PRODUCTS[0]))
        found.append(lz.linear(normed, weights[0], kernel=PRODUCTS[0]))
        for stream in sides:
            main.wait_stream(stream)
        between()
        return lz.swiglu(lz.swiglu(found[0], found[1]), found[2])

    expected = run(torch.cuda.synchronize).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    for repeat in range(REPEATS):
        result.zero_()
        graph.replay()
        assert torch.equal(result, expected), repeat
        assert torch.equal(run(), expected), repeat


@pytest.mark.parametrize("rows", [1, 16])
def test_the_same_bits_without(rows, switch):
    layer, x = Layer(rows, PRODUCTS[0]), numbers(rows, HIDDEN, seed=5)
    found = layer.run(x).clone()
    switch(0)
    assert torch.equal(layer.run(x), found)
