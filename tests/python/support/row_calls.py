"""Calls of torch's rows at sizes beyond the conformance cases: (operation, kernel, arguments), arguments made on a device.

Each is compared with the operation's reference, elementwise or, for products, relative to the largest of a row.
"""

import torch

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FP8 = torch.float8_e4m3fn


def _normal(*shape, dtype=BF16, factor=1.0):
    return (torch.randn(shape) * factor).to(dtype)


def _quantised(format, *shape, **options):
    from layerzero.torch.references import reference_function

    return reference_function("quantize")(torch.randn(shape), format, **options)


def _quantize():
    for dtype in (F32, BF16, torch.float16):
        x = _normal(33, 256, dtype=dtype)
        for format in ("int8", "int4", "fp8_e4m3", "fp8_e5m2"):
            for options in ({}, {"axis": 0}, {"axis": 1}, {"group_size": 32}, {"scale": torch.tensor(0.02)}):
                yield "quantize", "torch.quantize", dict(input=x, dtype=format, **options)
        for format in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"):
            yield "quantize", "torch.quantize", dict(input=x, dtype=format)
        yield "quantize", "torch.quantize", dict(input=x, dtype="nvfp4", tensor_scale=torch.tensor([0.01]))
        yield "quantize_nvfp4", "torch.quantize_nvfp4", dict(input=x, per_row=True)
        for format in ("int8", "uint8", "int4", "uint4"):
            yield "quantize_asymmetric", "torch.quantize_asymmetric", dict(input=x, dtype=format, group_size=64)
    for format in ("int8", "int4", "fp8_e4m3", "mxfp8_e4m3", "mxfp4"):
        values, scale = _quantised(format, 33, 256)
        for dtype in ("float32", "bfloat16", "float16"):
            yield "dequantize", "torch.dequantize", dict(values=values, scale=scale, format=format, dtype=dtype)


def _norms():
    for dtype in (F32, BF16, torch.float16):
        x, y, w, b = (_normal(*shape, dtype=dtype) for shape in ((70, 513), (70, 513), (513,), (513,)))
        yield "rms_norm", "torch.rms_norm", dict(input=x, weight=w)
        yield "layer_norm", "torch.layer_norm", dict(input=x, normalized_shape=513, weight=w, bias=b)
        yield "fused_add_rms_norm", "torch.fused_add_rms_norm", dict(input=x, residual=y, weight=w)
        given = dict(input=x, residual=y, normalized_shape=513, weight=w, bias=b)
        yield "fused_add_layer_norm", "torch.fused_add_layer_norm", given


def _elementwise():
    for dtype in (F32, BF16):
        x, y = _normal(65, 300, dtype=dtype), _normal(65, 300, dtype=dtype)
        for function in ("silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "tanh", "identity"):
            yield "activation", "torch.activation", dict(input=x, function=function)
        yield "swiglu", "torch.swiglu", dict(gate=x, up=y)
        yield "geglu", "torch.geglu", dict(gate=x, up=y)
        yield "silu_and_mul", "torch.silu_and_mul", dict(input=x)
        for options in ({}, {"limit": 7.0, "alpha": 1.702, "up_offset": 1.0, "interleaved": True}):
            yield "gated_activation", "torch.gated_activation", dict(input=x, activation="silu", **options)
        yield "elementwise", "torch.elementwise", dict(input=x, other=y, function="mul")
        yield "elementwise", "torch.elementwise.scaled", dict(input=x, other=y, function="add", scale=0.5)
        yield "reduce_tree", "torch.reduce_tree", dict(input=x.view(5, 13, 300))
        yield "convert", "torch.convert.to_fp8", dict(input=x * 200, dtype="float8_e4m3fn")
        yield "convert", "torch.convert.from_fp8", dict(input=x.to(FP8), dtype="float32")
        heads = _normal(2, 33, 4, 64, dtype=dtype)
        yield "convert_layout", "torch.convert_layout", dict(input=heads, source="BSHD", target="BHSD")
        table = torch.randn(50, 32)
        for ids in (None, torch.randint(0, 50, (2, 33))):
            cos, sin = (table, table.flip(0)) if ids is not None else (table[:33], table[17:])
            given = dict(input=heads, cos=cos, sin=sin, position_ids=ids, layout="BSHD")
            yield "rope", "torch.rope", given | {"interleaved": ids is not None}
        yield "alibi", "torch.alibi", dict(slopes=_normal(8, dtype=dtype).abs(), s_q=7, s_kv=90, causal=True)


def _caches():
    slots = torch.randperm(64)[:20]
    slots[3] = slots[7] = -1
    for dtype, rows, scale in ((BF16, BF16, None), (FP8, BF16, torch.tensor(0.5)), (torch.int8, F32, torch.rand(4))):
        key_cache, value_cache = (torch.zeros(8, 8, 4, d).to(dtype) for d in (32, 16))
        key, value = _normal(20, 4, 32, dtype=rows), _normal(20, 4, 16, dtype=rows)
        given = dict(key_cache=key_cache, value_cache=value_cache, key=key, value=value, layout="NHD")
        for places in (slots, torch.full_like(slots, -1)):
            kept = given | dict(slots=places.int(), k_scale=scale, v_scale=scale)
            yield "kv_append_paged", "torch.kv_append_paged", kept
            turns = dict(query=_normal(20, 8, 32, dtype=rows), cos=torch.randn(40, 16), sin=torch.randn(40, 16))
            turns |= dict(position_ids=torch.randint(0, 40, (20,)), interleaved=scale is None)
            yield "kv_rope_append_paged", "torch.kv_rope_append_paged", kept | turns
        read = dict(cache=_normal(8, 8, 4, 32).to(dtype), slots=slots, layout="NHD")
        read |= {} if scale is None else {"scale": scale, "dtype": "bfloat16"}
        yield "kv_gather", "torch.kv_gather", read
    moves = torch.tensor([[1, 5], [-1, 0], [2, 6]])
    caches = dict(key_cache=_normal(8, 8, 4, 32), value_cache=_normal(8, 8, 4, 16))
    yield "kv_compact", "torch.kv_compact", caches | dict(moves=moves)
    yield "kv_compact", "torch.kv_compact", caches | dict(moves=-torch.ones_like(moves))
    updates = torch.tensor([[1, 2, 7], [0, 3, 4], [1, 2, 9], [1, 0, -1]])
    table = torch.zeros(3, 5, dtype=torch.int32)
    yield "kv_block_table_update", "torch.kv_block_table_update", dict(block_tables=table, updates=updates)
    pages = dict(kv_indptr=[0, 2, 3, 6], kv_indices=[4, 1, 7, 2, 0, 3], kv_last_page_len=[3, 16, 1])
    given = {name: torch.tensor(values) for name, values in pages.items()} | dict(num_pages=8, page_size=16)
    yield "kv_page_table", "torch.kv_page_table", given
    yield "kv_page_table", "torch.kv_page_table", given | dict(qo_indptr=torch.tensor([0, 5, 6, 9]), total_q=9)


def _sequences():
    x = _normal(3, 150, 64, dtype=F32)
    mask = torch.rand(3, 150) > 0.4
    mask[1] = False
    for mode in ("mean", "max", "first", "last"):
        yield "sequence_pool", "torch.sequence_pool", dict(input=x, mask=mask, mode=mode)
        yield "sequence_pool", "torch.sequence_pool", dict(input=x, lengths=torch.tensor([3, 0, 150]), mode=mode)
    for s in (1, 150):
        for dtype in (F32, BF16):
            given = dict(input=_normal(3, s, 64, dtype=dtype), weight=_normal(64, 4, dtype=dtype))
            given |= dict(state=_normal(3, 64, 3, dtype=dtype), activation="silu")
            yield "causal_conv1d", "torch.causal_conv1d", given
        qk = [torch.nn.functional.normalize(torch.randn(2, s, 2, 32), dim=-1) for _ in range(2)]
        given = dict(query=qk[0], key=qk[1], value=_normal(2, s, 4, 16, dtype=F32), state=torch.randn(2, 4, 32, 16))
        given |= dict(g=-torch.rand(2, s, 4) * 3, beta=torch.rand(2, s, 4))
        yield "gated_delta_rule", "torch.gated_delta_rule", given


def _quantised_products():
    for dtype, kind in ((F32, ""), (BF16, ""), (F16, ".cuda")):
        x, bias = _normal(37, 128, dtype=dtype), _normal(64, dtype=dtype)
        for format, options in (("int8", {"axis": 0}), ("int4", {"group_size": 32}), ("mxfp4", {}), ("fp8_e4m3", {})):
            weight, scale = _quantised(format, 64, 128, **options)
            given = dict(input=x, weight=weight, weight_scale=scale, format=format, bias=bias)
            yield "linear_quantized", f"torch.linear_quantized{kind}", given
        blocks = torch.randint(0, 256, (64, 4, 34), dtype=torch.uint8)
        blocks[..., :2] = torch.tensor([0.01], dtype=F16).view(torch.uint8)  # q8_0: the scale, then 32 codes
        yield (
            "linear_gguf",
            f"torch.linear_gguf{kind}",
            dict(input=x, weight=blocks.flatten(1), format="q8_0", bias=bias),
        )


def _products():
    for dtype in (F32, BF16):
        x = _normal(37, 128, dtype=dtype)
        gate, up, down = (_normal(*shape, dtype=dtype, factor=0.1) for shape in ((96, 128), (96, 128), (64, 96)))
        given = dict(input=x, gate_weight=gate, up_weight=up, down_weight=down)
        yield "fused_mlp", "torch.fused_mlp", given | {"activation": "silu"}
        yield "fused_mlp", "torch.fused_mlp.gelu", given | {"activation": "gelu"}
        heads = _normal(37, 4, 32, dtype=dtype)
        for target in ("float32", "bfloat16"):
            weight = _normal(4, 24, 32, dtype=dtype)
            yield "head_linear", "torch.head_linear", dict(input=heads, weight=weight, dtype=target)
        for kind in ("", ".cuda"):
            weight, offsets = _normal(4, 64, 128, dtype=dtype, factor=0.1), torch.tensor([2, 2, 20, 30, 33])
            given = dict(input=x, weight=weight, offsets=offsets, bias=_normal(4, 64, dtype=dtype))
            yield "grouped_gemm", f"torch.grouped_mm{kind}", given
            ids = torch.randint(0, 4, (37, 2), dtype=torch.int32)
            ids[5, 1] = -1
            weights = [_normal(4, *s, dtype=dtype, factor=0.1) for s in ((96, 128), (96, 128), (64, 96))]
            given = dict(input=x, expert_ids=ids, expert_weights=torch.rand(37, 2), activation="silu")
            given |= dict(gate_weight=weights[0], up_weight=weights[1], down_weight=weights[2])
            for weighted in ("output", "input"):
                yield "fused_moe", f"torch.fused_moe{kind}", given | {"weighted": weighted}
    gate, up, down = (_normal(*shape, dtype=F16, factor=0.1) for shape in ((96, 128), (96, 128), (64, 96)))
    for size in (1e-3, 1.0, 300.0):  # hidden rows of 1e-6 to 1e5
        given = dict(input=_normal(37, 128, dtype=F16, factor=size), gate_weight=gate, up_weight=up, down_weight=down)
        given["down_weight"] = down / size
        yield "fused_mlp", "torch.fused_mlp.f16", given | {"activation": "silu"}
        yield "fused_mlp", "torch.fused_mlp.gelu.f16", given | {"activation": "gelu", "down_bias": down[:, 0] * 0.1}
    for scoring in ("softmax", "sigmoid", "sqrt_softplus"):
        given = dict(logits=_normal(37, 64), k=6, scoring=scoring, renormalize=True)
        yield "moe_route", "torch.moe_route", given
        grouped = {"num_groups": 8, "top_groups": 4, "group_score": "top2_sum"}
        yield "moe_route", "torch.moe_route", given | grouped | {"bias": torch.randn(64)}


BY_ROW = ("linear_quantized", "linear_gguf", "fused_mlp", "head_linear", "grouped_gemm", "fused_moe", "causal_conv1d")
EXACT = ("quantize", "quantize_asymmetric", "quantize_nvfp4", "dequantize", "convert", "reduce_tree")


def calls():
    torch.manual_seed(0)
    for make in (_quantize, _norms, _elementwise, _caches, _sequences, _quantised_products, _products):
        yield from make()


def compare(name, got, want):
    """Both as tuples of tensors on the CPU."""
    for one, expected in zip(got, want, strict=True):
        assert one.dtype == expected.dtype and one.shape == expected.shape
        a, b = (t.double() if t.is_floating_point() else t.long() for t in (one, expected))
        tolerance = 0.0 if name in EXACT else TOLERANCE.get(one.dtype, 0.0)
        if name == "gated_delta_rule":
            tolerance = 1e-4
        if name in BY_ROW and a.is_floating_point():
            error = (a - b).abs().amax(-1) - 2 * tolerance * b.abs().amax(-1)
            assert error.max() <= 0, float(error.max())
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
