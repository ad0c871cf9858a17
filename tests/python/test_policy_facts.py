"""The facts of a policy: calls are refused with the fact's name, what was wanted and got, and explain shows them."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

I32 = torch.int32


def decode(cache_dtype=torch.float32):
    cache = torch.zeros(4, 16, 2, 64, dtype=cache_dtype)
    tables = torch.tensor([0, 1], dtype=I32), torch.tensor([2], dtype=I32), torch.tensor([5], dtype=I32)
    return "paged_decode_attention", torch.zeros(1, 2, 64, dtype=cache_dtype), cache, cache.clone(), *tables


def append(layout):
    shape = (4, 16, 2, 64) if layout == "NHD" else (4, 2, 16, 64)
    rows = torch.zeros(3, 2, 64)
    return torch.zeros(shape), torch.zeros(shape), rows, rows.clone(), torch.tensor([0, 17, 5])


def reasons(operation, *tensors, **given):
    found = lz.explain(operation, *tensors, **given)
    return found, {reason.code: reason for c in found.candidates for reason in c.reasons}


def test_dtypes_of_caches():
    with lz.policy(kv_cache={"dtypes": ["float32"]}):  # proves: kv_cache.dtypes
        found, _ = reasons(*decode())
        assert found.kernel_id and found.policy_facts["policy.kv_cache.dtypes"] == "absent, float32"
        _, refused = reasons(*decode(torch.bfloat16))
        reason = refused["KV_CACHE_DTYPE_MISMATCH"]
        assert reason.field == "paged_k_cache.dtype" and reason.got == "bfloat16"
        assert "float32 (policy.kv_cache.dtypes)" in reason.wanted
        with pytest.raises(lz.NoKernelFoundError, match=r"policy\.kv_cache\.dtypes\), got bfloat16"):
            lz.paged_decode_attention(*decode(torch.bfloat16)[1:])
    lz.paged_decode_attention(*decode(torch.bfloat16)[1:])


def test_layouts_of_caches():
    with lz.policy(kv_cache={"layout": "HND"}):  # proves: kv_cache.layout
        lz.kv_append_paged(*append("HND"), layout="HND")
        with pytest.raises(lz.NoKernelFoundError, match=r"HND \(policy\.kv_cache\.layout\), got NHD"):
            lz.kv_append_paged(*append("NHD"), layout="NHD")
        lz.paged_decode_attention(*decode()[1:])  # an operation without that argument


def test_the_strategy_of_caches_is_that_of_managers_and_kernels():
    sizes = {"num_blocks": 4, "block_size": 16}

    @lz.register_kernel("norm.rms", "tests.paged", supported_dtypes=["float32"], supports_kv_strategies=["paged"])
    def norm(input, weight, eps):
        return input

    call = "rms_norm", torch.ones(2, 8), torch.ones(8)
    try:
        for strategy in ("contiguous", "paged"):
            with lz.policy(kv_cache={"strategy": strategy}):  # proves: kv_cache.strategy
                assert lz.KVCacheManager(**sizes).strategy == strategy
                other = "paged" if strategy == "contiguous" else "contiguous"
                with pytest.raises(lz.InvalidRequestError, match=f"wanted {strategy}.*KV_STRATEGY_UNSUPPORTED"):
                    lz.KVCacheManager(other, **sizes)
                assert ("KV_STRATEGY_UNSUPPORTED" in reasons(*call)[1]) == (strategy == "contiguous")
    finally:
        lz.unregister_kernel("norm.rms", "tests.paged")
    assert lz.KVCacheManager(**sizes).strategy == "paged"


def test_quantized_formats():
    x = torch.randn(4, 64)
    with lz.policy(quant={"formats": ["int8"]}):  # proves: quant.formats
        lz.quantize(x, "int8")
        with pytest.raises(lz.NoKernelFoundError, match=r"int8 \(policy\.quant\.formats\), got fp8_e4m3"):
            lz.quantize(x, "fp8_e4m3")
        _, refused = reasons("quantize", x, dtype="fp8_e4m3")
        assert "int8 (policy.quant.formats)" in refused["QUANT_FORMAT_UNSUPPORTED"].wanted
    lz.quantize(x, "fp8_e4m3")


def test_forbidden_numerics():
    packed = torch.zeros(16, 36, dtype=torch.uint8)
    call = "linear_gguf", torch.ones(1, 64), packed
    given = {"format": "q4_0"}
    classes = {k.numerics for k in lz.list_kernels("linear_gguf")} - {""}
    assert classes
    name = sorted(classes)[0]
    kernels = {k.kernel_id for k in lz.list_kernels("linear_gguf") if k.numerics == name}
    with lz.policy(forbid_numerics=[name]):  # proves: forbid_numerics
        found, refused = reasons(*call, **given)
        assert refused["POLICY_DENIED"].field == "policy.forbid_numerics"
        assert refused["POLICY_DENIED"].wanted == f"without {name}"
        assert found.kernel_id not in kernels
        assert all(c.reasons for c in found.candidates if c.kernel_id in kernels)


def test_explain_shows_every_fact():
    facts = lz.explain("rms_norm", torch.ones(2, 8), torch.ones(8)).policy_facts.to_dict()
    assert facts["policy.tp.size"] == "1" and facts["policy.tp.reduction_order"] == "any"
    assert facts["policy.quant.formats"] == "all" and facts["policy.forbid_numerics"] == "none"
    assert all(value for value in facts.values())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tp": {"size": 0}}, "an integer from 1 to 65536"),
        ({"tp": {"reduction_order": "tre"}}, "did you mean tree"),
        ({"kv_cache": {"layout": "BSHD"}}, "one of any, NHD, HND"),
        ({"kv_cache": {"dtypes": ["bfloat6"]}}, "did you mean bfloat16"),
        ({"quant": {"formats": ["int9"]}}, "a quantized format: .*did you mean int"),
        ({"forbid_numerics": ["w4a8int"]}, "a numerics class: .*did you mean w4a8-int"),
        ({"kv_cache": {"virtual_size_gb": 64}}, "see docs/roadmap.md"),
    ],
    ids=str,
)
def test_mistakes_name_what_was_meant(keys, message):
    for call in (lz.configure, lz.policy):
        with pytest.raises(lz.ConfigError, match=message):
            call(**keys)
