"""Which of torch's functions answers an attention call on a GPU, by simulated devices: rows are data, no GPU is asked."""

import layerzero as lz
import pytest
import torch

BF16, F32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def torch_alone():
    """A simulated device has every library."""
    with lz.policy(allow_sources=["torch"]):
        yield


def tensors(b=2, s_q=96, s_kv=96, h_q=4, h_kv=2, d=64, d_v=None, dtype=BF16):
    shapes = ((b, s_q, h_q, d), (b, s_kv, h_kv, d), (b, s_kv, h_kv, d_v or d))
    return tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


def mask(*shape, dtype=torch.bool):
    return torch.ones(shape, dtype=dtype)


def winner(qkv, operation="attention", device="h100", **options):
    return lz.explain(operation, *qkv, layout="BSHD", device=device, **options).kernel_id.removeprefix("torch.")


def shifted(tensor):
    return torch.cat((tensor.new_zeros(1), tensor.flatten()))[1:].view(tensor.shape)


SQUARE, ONE, CHUNK, LONG = {}, {"s_q": 1}, {"s_q": 32}, {"s_q": 100, "s_kv": 60}
SLOPES = {"alibi_slopes": torch.ones(4)}
SINKS = {"sinks": torch.ones(4)}
EXACT = {"sdpa.math", *(f"ref.attention.{kind}.prefill" for kind in ("gqa", "standard", "cross"))}

CASES = [  # shapes, arguments, kernel
    (SQUARE, {}, "sdpa.auto"),
    (SQUARE, {"causal": False}, "sdpa.auto"),
    (ONE, {}, "sdpa.auto"),
    (CHUNK, {"causal": False}, "sdpa.auto.full"),
    (CHUNK, {}, "sdpa.flash"),
    (LONG, {}, "sdpa.flash"),
    (SQUARE | {"dtype": F32}, {}, "sdpa.auto"),
    (SQUARE | {"d": 320}, {}, "sdpa.auto"),
    (SQUARE | {"d": 64, "d_v": 128}, {}, "sdpa.auto"),
    (SQUARE | {"d": 20}, {}, "sdpa.auto.unaligned"),
    (SQUARE, {"scale": -0.5}, "sdpa.auto"),
    (SQUARE, {"dropout_p": 0.1}, "sdpa.auto"),
    (SQUARE, {"attn_mask": mask(96, 96)}, "sdpa.auto.mask"),
    (SQUARE, {"attn_mask": mask(96)}, "sdpa.auto.mask"),
    (SQUARE, {"attn_mask": mask(4, 96, 96)}, "sdpa.auto.mask"),
    (ONE, {"attn_mask": mask(2, 1, 1, 96)}, "sdpa.auto.mask"),
    (SQUARE, {"attn_mask": mask(96, 96, dtype=BF16)}, "sdpa.auto.bias"),
    (SQUARE, {"attn_mask": mask(96, 96, dtype=F32)}, "attention.matmul"),
    (SQUARE, {"attn_mask": mask(96, 96, dtype=torch.float16)}, "attention.matmul"),
    (SQUARE | {"dtype": F32}, {"attn_mask": mask(96, 96, dtype=F32)}, "sdpa.auto.bias"),
    (SQUARE, {"window": 8}, "sdpa.flash.window"),
    (CHUNK, {"window": 8, "causal": False}, "sdpa.flash.window"),
    (ONE, {"window": 8}, "sdpa.auto.window"),
    (SQUARE | {"dtype": F32}, {"window": 8}, "sdpa.auto.band"),
    (SQUARE, {"return_lse": True}, "sdpa.flash.lse"),
    (ONE, {"return_lse": True}, "sdpa.flash.lse"),
    (SQUARE, SINKS | {"window": 8}, "sdpa.flash.lse"),
    (SQUARE | {"dtype": F32}, {"return_lse": True}, "attention.matmul"),
    (SQUARE, SLOPES, "sdpa.flash.alibi"),
    (SQUARE, SLOPES | {"window": 8}, "sdpa.flash.alibi"),
    (SQUARE, SLOPES | {"causal": False}, "attention.matmul"),
    (SQUARE, SLOPES | {"return_lse": True}, "attention.matmul"),
    (SQUARE | {"d": 256}, SLOPES, "attention.matmul"),
    (ONE, SLOPES, "attention.matmul"),
    (SQUARE, {"softcap": 30.0}, "attention.matmul"),
    (ONE, {"softcap": 30.0}, "attention.matmul"),
    (SQUARE, SINKS | {"attn_mask": mask(96, 96)}, "attention.matmul"),
    (SQUARE, {"attn_mask": mask(96, 96), "window": 8}, "attention.matmul"),
]


def named(case):
    values = [f"{k}={tuple(v.shape) if isinstance(v, torch.Tensor) else v}" for k, v in {**case[0], **case[1]}.items()]
    return " ".join([*values, case[2]])


@pytest.mark.parametrize(("shapes", "options", "kernel"), CASES, ids=map(named, CASES))
@pytest.mark.parametrize("device", ["a100", "h100", "b200"])
def test_a_function_of_torch_answers(shapes, options, kernel, device):
    assert winner(tensors(**shapes), device=device, **options) == kernel


@pytest.mark.parametrize(("shapes", "options", "kernel"), CASES, ids=map(named, CASES))
def test_cross_attention_mirrors_dense(shapes, options, kernel):
    if {"window", "alibi_slopes"} & set(options):
        pytest.skip("cross attention has no positions")
    if kernel in ("sdpa.flash", "sdpa.auto.full"):  # no triangle that is not square
        kernel = "sdpa.auto"
    options = {k: v for k, v in options.items() if k != "causal"}
    assert winner(tensors(**shapes), "cross_attention", **options) == kernel


def test_unaligned_tensors_are_not_given_to_a_kernel_that_loads_16_bytes():
    q, k, v = tensors()
    assert winner((shifted(q), k, v)) == "sdpa.auto.unaligned"
    assert winner((q, shifted(k), v), attn_mask=mask(96, 96)) == "sdpa.auto.unaligned"
    assert winner((q, shifted(k), v), return_lse=True) == "attention.matmul"


@pytest.mark.parametrize("options", [{"return_lse": True}, SINKS, SLOPES], ids=str)
def test_a_gradient_that_torch_does_not_have_is_not_promised(options):
    q, k, v = (t.requires_grad_() for t in tensors())
    assert winner((q, k, v), **options) == "attention.matmul"
    assert winner((q, k, v), window=8) == "sdpa.flash.window"
    assert winner((q, k, v)) == "sdpa.auto"


def test_deterministic_calls_have_kernels_without_gradients():
    qkv = tensors()
    with lz.policy(deterministic=True):
        assert winner(qkv) == "sdpa.flash.no_grad"
        assert winner(tensors(dtype=F32, h_kv=4)) == "sdpa.efficient.f32.no_grad"
        trained = tuple(t.requires_grad_() for t in qkv)
        assert winner(trained) in EXACT


def test_where_nothing_is_hidden_strict_mode_has_the_same_kernels():
    with lz.policy(strict_mode=True):
        assert winner(tensors(s_q=1)) == "sdpa.auto"
        assert winner(tensors(s_q=1), window=8) == "sdpa.auto.window"
        assert winner(tensors(), "cross_attention") == "sdpa.auto"
        for options in ({}, {"window": 8}, {"attn_mask": mask(96, 96)}, {"softcap": 2.0}):
            assert winner(tensors(), **options) in EXACT
        assert winner(tensors(), "cross_attention", attn_mask=mask(96, 96)) in EXACT


@pytest.mark.parametrize(
    ("device", "order"),
    [("a100", ["auto", "flash", "cudnn", "efficient"]), ("h100", ["auto", "cudnn", "flash", "efficient"])],
)
def test_cudnn_comes_before_flash_from_hopper_on(device, order):
    report = lz.explain("attention", *tensors(h_kv=4), layout="BSHD", device=device)
    score = {c.kernel_id: c.score for c in report.candidates if c.admissible}
    scores = [score[f"torch.sdpa.{name}"] for name in order]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == len(scores)


@pytest.mark.parametrize("options", [{"return_lse": True}, SINKS], ids=["lse", "sinks"])
@pytest.mark.parametrize(("device", "first"), [("a100", "flash"), ("h100", "cudnn")])
def test_sinks_and_the_lse_of_prompts_are_cudnns_from_hopper_on(device, first, options):
    def scores(s_q, **more):
        report = lz.explain("attention", *tensors(s_q=s_q, s_kv=s_q), layout="BSHD", device=device, **options, **more)
        return {c.kernel_id: c.score for c in report.candidates if c.admissible}

    found = scores(128)
    other = {"flash": "cudnn", "cudnn": "flash"}[first]
    assert found[f"torch.sdpa.{first}.lse"] > found[f"torch.sdpa.{other}.lse"]
    for few in (scores(96), scores(128, window=8)):  # cuDNN would plan for each length of a growing cache
        assert "torch.sdpa.cudnn.lse" not in few and "torch.sdpa.flash.lse" in few


def test_cudnn_refuses_what_torch_refuses_for_it():
    def codes(qkv, kernel="torch.sdpa.cudnn", **options):
        report = lz.explain("attention", *qkv, layout="BSHD", device="h100", **options)
        return {r.code for c in report.candidates if c.kernel_id == kernel for r in c.reasons}

    assert codes(tensors()) == set()
    assert "SHAPE_UNSUPPORTED" in codes(tensors(s_q=1, s_kv=1))
    assert "DROPOUT_UNSUPPORTED" in codes(tensors(), dropout_p=0.1)
    assert "HEAD_DIM_TOO_LARGE" in codes(tensors(d=136))
    assert "ATTN_MASK_UNSUPPORTED" in codes(tensors(s_q=32))


NEEDS = {
    "torch.sdpa.auto.window": "window",
    "torch.sdpa.auto.band": "window",
    "torch.sdpa.flash.window": "window",
    "torch.sdpa.flash.alibi": "alibi_slopes",
    "torch.sdpa.auto.mask": "attn_mask",
    "torch.sdpa.auto.bias": "attn_mask",
    "torch.sdpa.cudnn.bias": "attn_mask",
    "torch.sdpa.efficient.bias": "attn_mask",
}


@pytest.mark.parametrize("name", ["attention", "cross_attention"])
@pytest.mark.parametrize("kernel", NEEDS)
def test_a_row_for_an_argument_wants_it(kernel, name):
    """Locked too: its adapter reads the argument."""
    reports = [lz.explain(name, *tensors(s_q=s, h_kv=4), layout="BSHD", device="h100") for s in (1, 96)]
    found = [c for report in reports for c in report.candidates if c.kernel_id == kernel]
    assert found or (name == "cross_attention" and NEEDS[kernel] in ("window", "alibi_slopes"))
    for candidate in found:
        assert not candidate.admissible
        assert any(reason.field == f"{NEEDS[kernel]}.given" for reason in candidate.reasons)
