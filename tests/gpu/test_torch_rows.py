"""The rows of torch's attention backends on the device: right within each limit, refused by the named reason beyond it."""

import layerzero as lz
import pytest
import torch

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
HALF = (torch.float16, torch.bfloat16)
FLASH, EFFICIENT, CUDNN, WIDE, MATH = (f"torch.sdpa.{n}" for n in ("flash", "efficient", "cudnn", "cudnn.wide", "math"))
EFFICIENT_F32 = "torch.sdpa.efficient.f32"


def tensors(b=2, s_q=33, s_kv=65, h_q=4, h_kv=4, d=64, d_v=None, dtype=torch.bfloat16):
    torch.manual_seed(d)
    shapes = ((b, s_q, h_q, d), (b, s_kv, h_kv, d), (b, s_kv, h_kv, d_v or d))
    return tuple(torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes)


def exact(q, k, v, causal, mask=None):
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        s_q, s_kv = logits.shape[-2:]
        seen = torch.ones(s_q, s_kv, dtype=torch.bool, device="cuda").tril(s_kv - s_q)
        logits = logits.masked_fill(~seen, float("-inf"))
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask.double()
    return (logits.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2)


def row_of(kernel, q, k, mask=None):
    """Float masks, and for cuDNN boolean masks and triangles that are not square, have rows of their own."""
    square = q.shape[1] == 1 or q.shape[1] == k.shape[1]
    if mask is not None and mask.dtype != torch.bool and kernel in (CUDNN, EFFICIENT):
        return f"{kernel}.bias"
    return f"{kernel}.mask" if kernel in (CUDNN, WIDE) and (mask is not None or not square) else kernel


def check(kernel, q, k, v, causal=True, mask=None):
    kernel = row_of(kernel, q, k, mask)
    got = lz.attention(q, k, v, causal=causal, attn_mask=mask, layout="BSHD", kernel=kernel)
    bound = TOLERANCE[q.dtype]
    torch.testing.assert_close(got.double(), exact(q, k, v, causal, mask), rtol=bound, atol=bound)


def codes(kernel, q, k, v, **options):
    report = lz.explain("attention", q, k, v, layout="BSHD", **options)
    return {r.code for c in report.candidates if c.kernel_id == kernel for r in c.reasons}


def refused(kernel, code, *qkv, **options):
    got = codes(kernel, *qkv, **options)
    assert code in got, f"{kernel}: {got or 'admitted'}"


@pytest.mark.parametrize("kernel", [FLASH, EFFICIENT, CUDNN, MATH])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("s_q", "s_kv"), [(1, 1), (1, 513), (33, 65), (128, 128), (1, 4096), (700, 700)])
def test_lengths_and_alignment_of_causal(kernel, dtype, causal, s_q, s_kv):
    if kernel == CUDNN and s_kv == 1:  # torch refuses it
        refused(CUDNN, "SHAPE_UNSUPPORTED", *tensors(s_q=s_q, s_kv=s_kv, dtype=dtype))
    else:
        check(kernel, *tensors(s_q=s_q, s_kv=s_kv, dtype=dtype), causal=causal)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("d", [8, 16, 40, 64, 96, 128])
def test_head_dims(dtype, d):
    for kernel in (FLASH, EFFICIENT, CUDNN):
        check(kernel, *tensors(d=d, dtype=dtype))


def test_wide_head_dims():
    for d in (136, 192, 256):
        for kernel in (FLASH, EFFICIENT, WIDE):
            if kernel == WIDE and torch.cuda.get_device_capability() != (9, 0):
                continue
            check(kernel, *tensors(d=d))
    check(EFFICIENT, *tensors(d=512))
    check(EFFICIENT, *tensors(d=64, d_v=128))
    refused(FLASH, "HEAD_DIM_TOO_LARGE", *tensors(d=264))
    refused(CUDNN, "HEAD_DIM_TOO_LARGE", *tensors(d=136))
    refused(WIDE, "HEAD_DIM_TOO_LARGE", *tensors(d=264))


def test_head_dims_that_are_no_multiple():
    for d in (4, 12, 20, 65):
        for kernel in (FLASH, EFFICIENT, CUDNN):
            assert codes(kernel, *tensors(d=d)) & {"HEAD_DIM_ALIGNMENT", "HEAD_DIM_INVALID", "ALIGNMENT"}
        check(MATH, *tensors(d=d))


def test_float32():
    for d in (4, 12, 64, 256):
        check(EFFICIENT_F32, *tensors(d=d, dtype=torch.float32))
    for kernel in (FLASH, EFFICIENT, CUDNN):
        refused(kernel, "DTYPE_UNSUPPORTED", *tensors(dtype=torch.float32))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("h_q", "h_kv"), [(8, 2), (8, 1), (32, 8), (9, 3)])
def test_grouped_heads(dtype, h_q, h_kv):
    for s_q in (1, 40):
        qkv = tensors(s_q=s_q, s_kv=100, h_q=h_q, h_kv=h_kv, dtype=dtype)
        for kernel in (FLASH, CUDNN):
            check(kernel, *qkv)
        assert EFFICIENT not in {c.kernel_id for c in lz.explain("attention", *qkv, layout="BSHD").candidates}


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(33, 65), (1, 1, 33, 65), (2, 4, 33, 65), (2, 1, 1, 65)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks(dtype, shape, boolean):
    qkv = tensors(dtype=dtype)
    mask = torch.randn(shape, device="cuda")
    mask = mask > -1 if boolean else mask.to(dtype)
    for kernel in (EFFICIENT, CUDNN):
        check(kernel, *qkv, causal=False, mask=mask)
    refused(FLASH, "ATTN_MASK_UNSUPPORTED", *qkv, attn_mask=mask, causal=False)


def test_masks_of_another_dtype_are_refused():
    qkv = tensors()
    for dtype in (torch.float32, torch.float16):
        mask = torch.randn(33, 65, device="cuda", dtype=dtype)
        for kernel in (EFFICIENT, f"{EFFICIENT}.bias", f"{CUDNN}.mask", f"{CUDNN}.bias", FLASH):
            refused(kernel, "ATTN_MASK_UNSUPPORTED", *qkv, attn_mask=mask, causal=False)


def test_rows_that_see_no_key():
    mask = torch.ones(33, 65, dtype=torch.bool, device="cuda")
    mask[3] = False
    for kernel in (EFFICIENT, CUDNN, MATH):
        check(kernel, *tensors(), causal=False, mask=mask)
    for kernel in (FLASH, EFFICIENT, CUDNN):
        check(kernel, *tensors(s_q=65, s_kv=33))  # the first rows see nothing


def test_alignment_below_16_bytes_is_refused():
    q, k, v = tensors()
    shifted = torch.cat((q.new_zeros(1), q.flatten()))[1:].view(q.shape)
    for kernel in (FLASH, EFFICIENT, CUDNN):
        refused(kernel, "ALIGNMENT", shifted, k, v)
    check(MATH, shifted, k, v)


def test_strided_heads_and_sequences():
    packed = torch.randn(2, 65, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    q, k, v = packed.unbind(2)
    for kernel in (FLASH, EFFICIENT, CUDNN):
        check(kernel, q, k, v)
    q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors())
    for kernel in (FLASH, EFFICIENT, CUDNN):
        check(kernel, q, k, v)
    heads_first = tuple(t.transpose(1, 2) for t in (q, k, v))
    for kernel in (FLASH, EFFICIENT, f"{CUDNN}.mask"):
        got = lz.attention(*heads_first, layout="BHSD", kernel=kernel)
        torch.testing.assert_close(got.transpose(1, 2).double(), exact(q, k, v, True), rtol=1.6e-2, atol=1.6e-2)


def test_batches_beyond_the_grid_are_refused():
    q = torch.empty(65536, 1, 1, 8, device="cuda", dtype=torch.bfloat16)
    refused(FLASH, "CUDA_GRID_DIM_EXCEEDED", q, q, q)
    q = q.normal_()[:65535]
    check(FLASH, q, q, q)


def test_different_head_dims():
    qkv = tensors(d=64, d_v=32)
    assert codes(FLASH, *qkv)
    for kernel in (EFFICIENT, CUDNN, MATH):
        if not codes(kernel, *qkv):
            check(kernel, *qkv)


@pytest.mark.parametrize("kernel", [FLASH, CUDNN, EFFICIENT, MATH])
@pytest.mark.parametrize("s_q", [1, 40])
def test_what_says_that_it_is_graph_safe_replays(kernel, s_q):
    s_kv = s_q if kernel == CUDNN and s_q > 1 else 300  # its row for other triangles does not say so
    q, k, v = tensors(s_q=s_q, s_kv=s_kv, h_q=8, h_kv=8 if kernel == EFFICIENT else 2)
    lz.attention(q, k, v, layout="BSHD", kernel=kernel)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        lz.attention(q, k, v, layout="BSHD", kernel=kernel)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lz.attention(q, k, v, layout="BSHD", kernel=kernel)
    for t in (q, k, v):
        t.normal_()
    graph.replay()
    torch.testing.assert_close(y.double(), exact(q, k, v, True), rtol=1.6e-2, atol=1.6e-2)


@pytest.mark.parametrize("kernel", [FLASH, EFFICIENT, CUDNN, MATH])
def test_gradients(kernel):
    leaves = [t.requires_grad_() for t in tensors(s_q=65)]
    twins = [t.detach().double().requires_grad_() for t in leaves]
    lz.attention(*leaves, layout="BSHD", kernel=kernel).float().square().sum().backward()
    exact(*twins, causal=True).square().sum().backward()
    for leaf, twin in zip(leaves, twins, strict=True):
        error = (leaf.grad.double() - twin.grad).norm() / twin.grad.norm()
        assert error < 2e-2, error
