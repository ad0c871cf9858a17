"""Facts of descriptors and of register_kernel: the same names, each obeyed or refused; refused backends stay visible."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, backends  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FACTS = {fact["name"]: fact for fact in json.loads(_layerzero.descriptor_facts())}
# Of KernelSpec: what the operation of a row, the decorated function, `constraints` and the adapter are.
IN_CODE = {"operation", "impl", "check", "adapt"}
KERNEL_SPEC = {
    *("kernel_id", "source", "version", "platform", "min_sm", "max_sm", "supported_dtypes", "supported_quant_dtypes"),
    *("quantization_requires_scales", "quantization_scale_granularity", "quantization_zero_point", "min_head_dim"),
    *("max_head_dim", "head_dim_multiple", "max_seq_len", "supports_gqa", "supports_bfloat16", "supports_fp8"),
    *("supports_int8", "supports_mxfp4", "supports_nvfp4", "supports_attn_mask", "supported_attn_mask_types"),
    *("supports_dropout", "supports_scale", "requires_layouts", "produces_layout", "requires_dtype", "produces_dtype"),
    *("supports_kv_cache_layouts", "supports_kv_cache_dtypes", "is_cuda_graph_safe", "deterministic"),
    *("requires_contiguous", "requires_last_dim_stride1", "requires_aligned", "priority", "fuses_ops"),
    *("requires_packed_weights", "supports_prepack", "transform_cost_hint", "tokenizer_ids", "vocab_hashes"),
    *("supports_offsets", "supports_normalizers", "supports_pretokenizers", "dtypes"),
}
X, W = torch.ones(2, 8), torch.ones(8)
Q = torch.randn(1, 3, 2, 8)


def rms_norm(input, weight, eps):
    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)


def sdpa(query, key, value, causal=False, scale=None, attn_mask=None):
    heads = [t.transpose(1, 2) for t in (query, key, value)]
    out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask, is_causal=causal, scale=scale)
    return out.transpose(1, 2)


@pytest.fixture
def registered():
    """Registers functions as kernels of an operation; undone after the test."""
    done = []

    def register(operation, kernel_id, function, **facts):
        facts = {"supported_dtypes": ["float32"], "platform": "cpu", "priority": 0, **facts}
        lz.register_kernel(operation, kernel_id, **facts)(function)
        done.append((operation, kernel_id))

    yield register
    for operation, kernel_id in dict.fromkeys(done):
        lz.unregister_kernel(operation, kernel_id)


def descriptor(name, operation="norm.rms", **facts):
    row = {"kernel_id": f"{name}.one", "dtypes": ["float32"], "requires_layouts": ["any"], **facts}
    return {
        "schema_version": "1.0",
        "backend": name,
        "backend_version": "1",
        "platform": "cpu",
        "ops": {operation: [row]},
    }


def codes(kernel_id, *args, **params):
    return [reason.code for reason in lz.validate(kernel_id, *args, **params)[1]]


def test_json_and_register_kernel_take_the_names_of_kernel_spec():
    schema = json.loads((ROOT / "schemas/capabilities.schema.json").read_text())
    published = set(schema["$defs"]["kernel"]["properties"]) - {"extends"}
    assert published == set(FACTS)
    assert set(FACTS) >= KERNEL_SPEC and not IN_CODE & set(FACTS)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_register_kernel_knows_every_name(registered, name):
    if name in ("kernel_id", "supported_dtypes", "dtypes", "adapter", "platform", "version"):
        return  # arguments of its own, or its own to say
    value = ("any",) if name == "requires_layouts" else None
    if "head_dim" in name:  # null: no limit, where there are heads
        registered("attention.standard.prefill", "tests.named", sdpa, **{"max_head_dim": None, name: value})
        return
    registered("norm.rms", "tests.named", rms_norm, **{name: value})
    assert lz.validate("tests.named", X, W) == (True, [])


@pytest.mark.parametrize("name", sorted(n for n, fact in FACTS.items() if fact["use"] == "unsupported"))
def test_what_is_not_supported_is_an_error(name):
    for value in (True, ["a"], {"a": 1}):
        with pytest.raises(lz.ConfigError, match=f"{name}: wanted no value: it is not supported in this version"):
            lz.register_kernel("norm.rms", "tests.not", supported_dtypes=["float32"], **{name: value})(rms_norm)
        with pytest.raises(lz.ConfigError, match=f"{name}: wanted no value"):
            _layerzero.register_backend(json.dumps(descriptor("lz_not", **{name: value})), "{}")
    assert "tests.not" not in {k.kernel_id for k in lz.list_kernels()}


def test_an_unknown_name_is_an_error():
    with pytest.raises(lz.ConfigError, match="speed"):
        lz.register_kernel("norm.rms", "tests.not", supported_dtypes=["float32"], speed=3)(rms_norm)


@pytest.mark.parametrize("layout, other", [("BSHD", "BHSD"), ("BHSD", "BSHD")])
def test_a_kernel_gets_calls_in_its_layouts_alone(layout, other):
    name = f"lz_layout_{layout.lower()}"
    facts = {"max_head_dim": 64, "supports_gqa": True, "supports_causal": True, "adapter": "m:f"}
    facts |= {"requires_contiguous": False, "requires_last_dim_stride1": True}
    row = descriptor(name, "attention.standard.prefill", requires_layouts=[layout], produces_layout=layout, **facts)
    _layerzero.register_backend(json.dumps(row), json.dumps({"proven": True}))
    try:
        ok, reasons = lz.validate(f"{name}.one", Q, Q, Q, layout=layout)
        assert ok, reasons
        ok, reasons = lz.validate(f"{name}.one", Q, Q, Q, layout=other)
        assert not ok and [(r.code, r.wanted, r.got) for r in reasons] == [("LAYOUT_UNSUPPORTED", layout, other)]
    finally:
        _layerzero.unregister("m:f")


def test_register_kernel_permutes_for_its_layouts(registered):
    seen = []

    def kernel(query, key, value, causal, scale):
        seen.append(tuple(query.shape))
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)

    facts = {"requires_layouts": {"BHSD"}, "produces_layout": "BHSD", "max_head_dim": 8, "supports_causal": True}
    registered("attention.standard.prefill", "tests.bhsd", kernel, **facts)
    torch.testing.assert_close(lz.attention(Q, Q, Q, layout="BSHD", kernel="tests.bhsd"), lz.attention(Q, Q, Q))
    assert seen == [(1, 2, 3, 8)]
    for layouts in (["BSHD"], ["BSHD", "BHSD"]):
        with pytest.raises(lz.InvalidRequestError, match="produces_layout"):
            registered("attention.standard.prefill", "tests.x", sdpa, requires_layouts=layouts, produces_layout="BHSD")


def test_masks_of_the_kinds_that_are_named(registered):
    facts = {"max_head_dim": 8, "supports_causal": True}
    registered(
        "attention.standard.prefill", "tests.bool", sdpa, supported_attn_mask_types=frozenset({"none", "bool"}), **facts
    )
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    assert codes("tests.bool", Q, Q, Q) == codes("tests.bool", Q, Q, Q, attn_mask=mask) == []
    assert codes("tests.bool", Q, Q, Q, attn_mask=mask.float()) == ["ATTN_MASK_UNSUPPORTED"]


def test_dtypes_of_the_cache_may_differ_from_the_others(registered):
    def kernel(q, paged_k_cache, paged_v_cache, kv_indptr, kv_indices, kv_last_page_len, sm_scale):
        raise AssertionError("is not called")

    facts = {"max_head_dim": 64, "supports_kv_cache_dtypes": [torch.float8_e4m3fn]}
    registered("attention.standard.decode.paged", "tests.cache", kernel, **facts)
    index = [torch.tensor(v, dtype=torch.int32) for v in ([0, 1], [0], [2])]
    q, cache = torch.zeros(1, 2, 8), torch.zeros(1, 4, 2, 8)
    fp8 = cache.to(torch.float8_e4m3fn)
    assert codes("tests.cache", q, fp8, fp8, *index, 1.0) == []
    assert set(codes("tests.cache", q, cache, cache, *index, 1.0)) == {"KV_CACHE_DTYPE_MISMATCH"}


def test_a_workspace_counts_for_the_headroom(registered):
    registered("norm.rms", "tests.large", rms_norm, workspace_bytes="hidden * 1099511627776", priority=100)
    assert codes("tests.large", X, W) == ["MEMORY_HEADROOM_EXCEEDED"]
    assert lz.which("rms_norm", X, W)["kernel_id"] != "tests.large"
    registered("norm.rms", "tests.small", rms_norm, workspace_bytes=4096)
    assert codes("tests.small", X, W) == []


def test_a_transform_costs_what_is_declared(registered):
    strided = torch.ones(8, 2).t()
    for name, hint in (("tests.dear", 12.5), ("tests.cheap", 0)):
        registered("norm.rms", name, rms_norm, requires_contiguous=True, transform_cost_hint=hint)
    terms = {c.kernel_id: {t.name: t.value for t in c.terms} for c in lz.explain("rms_norm", strided, W).candidates}
    assert terms["tests.dear"]["transform_cost_hint"] == -12.5
    assert "transform_cost_hint" not in terms["tests.cheap"] and terms["tests.cheap"]["transforms"] < 0
    dense = {c.kernel_id: c.terms for c in lz.explain("rms_norm", X, W).candidates}
    assert "transform_cost_hint" not in {t.name for t in dense["tests.dear"]}


def test_notes_are_listed(registered):
    registered("norm.rms", "tests.noted", rms_norm, notes=["of a test"])
    (kernel,) = [k for k in lz.list_kernels("norm.rms") if k.kernel_id == "tests.noted"]
    assert list(kernel.notes) == ["of a test"] and kernel.origin == "function"


# ---- grouped heads


def test_grouped_heads_are_the_reason_of_a_kernel_without_them(registered):
    registered("attention.standard.prefill", "tests.ungrouped", sdpa, max_head_dim=64, supports_causal=True)
    query = torch.randn(1, 3, 4, 8)
    ok, (reason,) = lz.validate("tests.ungrouped", query, Q, Q)
    assert not ok and (reason.code, reason.field, reason.wanted, reason.got) == ("GQA_UNSUPPORTED", "group", "1", "2")
    with pytest.raises(lz.NoKernelFoundError) as error:
        lz.attention(query, Q, Q, kernel="tests.ungrouped")
    assert [r.code for r in error.value.failures["tests.ungrouped"]] == ["GQA_UNSUPPORTED"]
    assert codes("tests.ungrouped", Q, Q, Q) == []
    assert codes("tests.ungrouped", Q[:, :1], Q, Q) != []  # a decode


# ---- refused backends


def wrong(name):
    twice = descriptor(name)
    twice["ops"]["norm.rms"] *= 2
    taken = descriptor(name)
    taken["ops"]["norm.rms"][0]["kernel_id"] = "hwy.norm.rms"
    return {
        "schema": descriptor(name) | {"schema_version": "9"},
        "field": descriptor(name, speed=1),
        "unsupported": descriptor(name, jit={"seconds": 3}),
        "no layouts": descriptor(name, requires_layouts=[]),
        "twice": twice,
        "taken": taken,
        "no object": [],
        "raises": None,
    }


@pytest.mark.parametrize("case", wrong(""))
def test_a_refused_backend_is_listed_with_its_problem(case):
    name = f"lz_refused_{case.replace(' ', '_')}"

    def made():
        if case == "raises":
            raise OSError("the file is gone")
        return wrong(name)[case]

    try:
        backends._try(name, made)
        report = lz.doctor()
        (problem,) = [p for p in report.problems if p.startswith(f"{name}: ")]
        library = report.libraries[name].to_dict()
        assert not report.ok and not library["installed"] and not library["usable"] and library["kernels"] == 0
        assert library["missing"][0]["detail"] in problem
        assert library["missing"][0]["code"] == (None if case == "raises" else "CAPABILITIES_SCHEMA_MISMATCH")
        assert f"{name}.one" not in {k.kernel_id for k in lz.list_kernels()}
    finally:
        backends._problems.pop(name, None)
        backends._libraries.pop(name, None)


def test_own_cuda_kernels_that_are_refused_are_a_problem(monkeypatch):
    devices = json.loads(_layerzero.devices()) | {"cuda_library": "liblayerzero_cuda.so: wanted build 1, got 2"}
    monkeypatch.setattr(_layerzero, "devices", lambda: json.dumps(devices))
    report = lz.doctor()
    assert "layerzero.cuda: liblayerzero_cuda.so: wanted build 1, got 2" in list(report.problems)
    assert not report.libraries["layerzero.cuda"].usable and not report.libraries["layerzero.cuda"].installed


# ---- capabilities


def test_the_capabilities_hash_is_of_kernels_build_and_device(registered):
    def now(device=None):
        return lz.explain("rms_norm", X, W, device=device).capabilities_hash

    first = now()
    assert len(first) == 64 and first == now() and now("h100") != now("a100") != first
    assert lz.doctor().devices.devices[0].capabilities_hash == first
    lz.rms_norm(X, W)
    registered("norm.layer", "tests.hash", lambda input, normalized_shape: input)
    second = now()
    assert second != first
    lz.unregister_kernel("norm.layer", "tests.hash")
    assert now() == first  # the same kernels
    registered("norm.layer", "tests.hash", lambda input, normalized_shape: input, priority=1)
    assert now() not in (first, second)  # the same id under another rule


# ---- coverage


def test_coverage_names_what_serves():
    entries = {(e.operation, e.dtype): e for e in lz.coverage("h100")}
    norm = entries["norm.rms", "bfloat16"]
    assert norm.device == "h100" and "torch.rms_norm" in norm.kernels and norm.references
    assert not any(e.not_installed for e in entries.values())
    assert "hwy.norm.rms" not in norm.kernels
    assert (
        "torch.sdpa.flash"
        not in {(e.operation, e.dtype): e for e in lz.coverage("t4")}["attention.gqa.prefill", "bfloat16"].kernels
    )


def test_coverage_is_of_this_machine_and_of_simulated_devices():
    devices = json.loads(_layerzero.devices())
    names = {d["name"] for d in (*devices["devices"], *devices["simulated"])}
    entries = lz.coverage()
    assert {e.device for e in entries} == names and len(entries) == len(lz.coverage("cpu")) * len(names)
    with pytest.raises(lz.UnknownNameError, match="h100"):
        lz.coverage("h1000")


def test_coverage_agrees_with_explain():
    for device in ("h100", "t4", "zen5"):
        entry = next(e for e in lz.coverage(device) if (e.operation, e.dtype) == ("norm.rms", "float32"))
        report = lz.explain("rms_norm", X, W, device=device)
        admitted = {c.kernel_id for c in report.candidates if c.admissible}
        assert admitted <= {*entry.kernels, *entry.references} and admitted


def test_coverage_is_of_what_ships(registered):
    registered("norm.rms", "tests.covered", rms_norm)
    served = {k for e in lz.coverage("zen5") for k in e.kernels}
    assert "tests.covered" not in served and "hwy.norm.rms" in served
    assert "tests.covered" in {k for e in lz.coverage("zen5", shipped=False) for k in e.kernels}


def test_every_operation_has_an_answer_on_every_device():
    """No hole: a reference at least serves each operation and dtype that the contract admits."""
    names = [d["name"] for d in json.loads(_layerzero.devices())["simulated"]]
    holes = {(e.operation, e.device, e.dtype) for e in lz.coverage(*names) if not e.kernels and not e.references}
    assert not holes


def test_a_gpu_that_the_build_has_no_code_for_has_a_reason_of_its_own():
    if json.loads(_layerzero.devices())["cuda_library"] != "loaded":
        pytest.skip("a build without own CUDA kernels")
    (entry,) = [e for e in lz.coverage("t4") if (e.operation, e.dtype) == ("norm.rms", "float32")]
    assert "cuda.norm.rms" in entry.not_built and "cuda.norm.rms" not in entry.kernels
    found = {c.kernel_id: c for c in lz.explain("rms_norm", X, W, device="t4").candidates}
    assert [r.code for r in found["cuda.norm.rms"].reasons] == ["NOT_BUILT"]
    assert "PLATFORM_MISMATCH" in [r.code for r in found["hwy.norm.rms"].reasons]
    with lz.policy(rules=[{"deny": ["torch"]}]):
        found = {c.kernel_id: c for c in lz.explain("rms_norm", X, W, device="t4").candidates}
    assert [r.code for r in found["torch.rms_norm"].reasons] == ["POLICY_DENIED"]
