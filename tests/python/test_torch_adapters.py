"""The torch adapters against the operations' own torch references, on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from layerzero.backends.torch import adapters, attention  # noqa: E402
from layerzero.torch.references import reference_function  # noqa: E402

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
reference = reference_function("attention")


def check(got, want):
    tolerance = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want.double(), rtol=tolerance, atol=tolerance)


def call(adapter, q, k, v, layout="BSHD", causal=None, scale=None, attn_mask=None):
    causal = attn_mask is None if causal is None else causal
    return adapter(q, k, v, causal, scale, attn_mask, 0.0, None, None, None, None, False, layout)


def tensors(b, s_q, s_kv, h_q, h_kv, d, dtype=torch.float32):
    torch.manual_seed(s_q * 100 + s_kv)
    return tuple(torch.randn(b, s, h, d).to(dtype) for s, h in ((s_q, h_q), (s_kv, h_kv), (s_kv, h_kv)))


SHAPES = [  # b, s_q, s_kv, h_q, h_kv, d
    (2, 5, 5, 4, 4, 16),
    (1, 1, 9, 4, 2, 8),
    (2, 3, 7, 6, 2, 16),
    (1, 7, 3, 2, 2, 8),
    (1, 33, 65, 2, 1, 64),
    (1, 4, 4, 2, 2, 3),
]


@pytest.mark.parametrize("adapter", [attention.sdpa_cpu, attention.sdpa_math], ids=lambda a: a.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_attention(adapter, shape, causal):
    q, k, v = tensors(*shape)
    want = reference(q.double(), k.double(), v.double(), causal=causal)
    check(call(adapter, q, k, v, causal=causal), want)
    swapped = call(adapter, *(t.transpose(1, 2) for t in (q, k, v)), layout="BHSD", causal=causal)
    check(swapped.transpose(1, 2), want)


@pytest.mark.parametrize("adapter", [attention.sdpa_cpu, attention.sdpa_math], ids=lambda a: a.__name__)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_attention_dtypes_scale_and_gradient(adapter, dtype):
    q, k, v = tensors(2, 5, 5, 4, 2, 16, dtype)
    check(call(adapter, q, k, v, scale=0.3), reference(q.double(), k.double(), v.double(), scale=0.3))
    q.requires_grad_()
    assert call(adapter, q, k, v).requires_grad


@pytest.mark.parametrize("adapter", [attention.sdpa_cpu, attention.sdpa_math], ids=lambda a: a.__name__)
@pytest.mark.parametrize("shape", [(5, 7), (1, 1, 5, 7), (2, 1, 1, 7), (1, 4, 5, 1), (2, 4, 5, 7), (1, 7)], ids=str)
@pytest.mark.parametrize("boolean", [True, False])
def test_attention_masks(adapter, shape, boolean):
    q, k, v = tensors(2, 5, 7, 4, 2, 8)
    mask = torch.randn(shape) > 0 if boolean else torch.randn(shape)
    want = reference(q.double(), k.double(), v.double(), attn_mask=mask if boolean else mask.double())
    check(call(adapter, q, k, v, attn_mask=mask), want)


@pytest.mark.parametrize("adapter", [attention.sdpa_cpu, attention.sdpa_math], ids=lambda a: a.__name__)
def test_rows_that_see_no_key_are_zero(adapter):
    q, k, v = tensors(1, 3, 4, 2, 2, 8)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1] = False
    output = call(adapter, q, k, v, attn_mask=mask)
    assert torch.equal(output[:, 1], torch.zeros_like(output[:, 1]))


def test_bias_is_aligned_and_means_the_mask():
    q, k = torch.zeros(2, 4, 5, 8), torch.zeros(2, 4, 7, 8)
    mask = torch.randn(5, 9)[:, 1:8]
    bias = attention.additive(q, k, mask)
    assert bias.shape == (1, 1, 5, 7) and torch.equal(bias[0, 0], mask)
    assert bias.data_ptr() % 16 == 0 and bias.stride(2) * 4 % 16 == 0
    boolean = attention.additive(q, k, mask > 0)
    assert torch.equal(boolean[0, 0] == 0, mask > 0)
    assert torch.equal(boolean[0, 0] == -torch.inf, mask <= 0)
    one_column = attention.additive(q, k, mask[:, :1] > 0)
    assert one_column.shape == (1, 1, 5, 7) and one_column.stride(-1) == 1


def test_functions():
    x, w, b = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    check(adapters.rms_norm(x, w, 1e-6, None), x.double() / (x.double().square().mean(-1, True) + 1e-6).sqrt() * w)
    check(
        adapters.layer_norm(x, 8, w, b, 1e-5), torch.nn.functional.layer_norm(x.double(), (8,), w.double(), b.double())
    )
    weight = torch.randn(4, 8)
    check(adapters.linear(x, weight, None), x.double() @ weight.double().T)
    check(adapters.softmax(x.bfloat16(), 0.5), torch.softmax(x.bfloat16().double() / 0.5, -1))
    assert torch.equal(adapters.embedding(torch.tensor([2, 0]), x), x[[2, 0]])
