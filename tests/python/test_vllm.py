"""The attention backend for vLLM: metadata and results of steps on the CPU, against attention written out in float32.

Runs with vLLM's own classes where vLLM is importable, else with stand-ins; test_vllm_signatures.py holds both to vLLM 0.25.
"""

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import vllm_stand_in  # noqa: E402
from layerzero.torch import offsets  # noqa: E402
from vllm_step import HEADS, KV_HEADS, PAGE, SIZE, Step  # noqa: E402

REAL = importlib.util.find_spec("vllm") is not None
OURS = "layerzero.integrations.vllm"


@pytest.fixture(scope="module")
def plugin():
    """LayerZero's modules over vLLM or the stand-ins, which are gone afterwards."""
    made = {} if REAL else vllm_stand_in.modules()
    sys.modules.update(made)
    try:
        yield types.SimpleNamespace(
            root=importlib.import_module(OURS),
            attention=importlib.import_module(f"{OURS}.attention"),
            metadata=importlib.import_module(f"{OURS}.metadata"),
            vllm=importlib.import_module("vllm.v1.attention.backend"),
        )
    finally:
        for name in [n for n in sys.modules if n in made or (not REAL and n.startswith(OURS))]:
            del sys.modules[name]


STEPS = {
    "decode": [(20, 1), (3, 1), (64, 1)],
    "prompts": [(0, 5), (0, 40), (0, 17)],
    "chunks": [(16, 5), (30, 40)],
    "mixed": [(20, 1), (64, 1), (0, 9), (33, 20)],
}
OPTIONS = {
    "plain": {},
    "window": {"sliding_window": 12},
    "cap": {"logits_soft_cap": 5.0},
    "alibi": {"alibi_slopes": [2.0**-i for i in range(HEADS)]},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS, dtype=torch.bfloat16)},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step(plugin, step, options):
    Step(plugin, STEPS[step]).check(**OPTIONS[options])


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("step", STEPS)
def test_eight_bit_caches(plugin, step, stored):
    Step(plugin, STEPS[step], stored=stored).check()


@pytest.mark.parametrize("options", ["plain", "sinks"])
def test_a_shared_prefix_is_read_once_and_merged(plugin, options):
    step = Step(plugin, [(40, 1), (50, 1), (33, 7)], shared=32)
    metadata = step.built()
    assert metadata.shared.num_pages == 2 and metadata.lengths.tolist() == [9, 19, 8]
    step.check(**OPTIONS[options])


def test_heads_before_positions_in_memory(plugin):
    Step(plugin, STEPS["mixed"], heads_first=True).check()


def test_padded_tokens_belong_to_nobody(plugin):
    Step(plugin, STEPS["mixed"], padding=3).check()
    Step(plugin, STEPS["decode"], padding=5).check()


def test_keys_of_another_layer_are_read_from_the_cache(plugin):
    step = Step(plugin, STEPS["prompts"])
    step.run()
    step.key = step.value = torch.full_like(step.key, torch.nan)
    output = torch.empty_like(step.query)
    layer = plugin.attention.LayerZeroImpl(HEADS, SIZE, 0.125, KV_HEADS, kv_sharing_target_layer_name="model.0")
    layer.forward(step.layer, step.query, step.key, step.value, step.memory, step.built(), output)
    torch.testing.assert_close(output.float(), step.expected(), atol=2e-2, rtol=2e-2)


def test_what_is_built(plugin):
    mixed = Step(plugin, STEPS["mixed"]).built()
    assert (mixed.num_decodes, mixed.num_decode_tokens, mixed.num_tokens) == (2, 2, 31)
    assert mixed.prefill.query_start.tolist() == [0, 9, 29] and mixed.prefill.longest == 20
    assert not mixed.prefill.fresh and mixed.prefill.pages.last_len.tolist() == [9, 53 % PAGE]
    assert mixed.prefill.pages.indptr.tolist() == [0, 1, 5]
    assert Step(plugin, STEPS["prompts"]).built().prefill.fresh
    for step, padding, last, longest in (("mixed", 0, 29, 20), ("prompts", 0, 62, 40), ("prompts", 3, 62, 40)):
        prefill = Step(plugin, STEPS[step], padding=padding).built().prefill
        assert offsets.known(prefill.query_start)[:2] == (last, longest)
        assert prefill.end == last + (2 if step == "mixed" else 0)
    assert not Step(plugin, STEPS["prompts"]).built(bounds=False).prefill.fresh  # nothing is known of the lengths
    decode = Step(plugin, STEPS["decode"])
    assert decode.built().prefill is None and decode.built().tables.shape == (3, 5)
    assert decode.built(captured=True).tables.shape == (3, decode.width)  # a graph serves all lengths


def test_without_bounds_of_lengths(plugin):
    step = Step(plugin, STEPS["mixed"])
    output = step.run(step.built(bounds=False))
    torch.testing.assert_close(output.float(), step.expected(), atol=2e-2, rtol=2e-2)


def test_another_group_of_layers_has_its_own_blocks(plugin):
    step = Step(plugin, STEPS["mixed"])
    metadata = step.built()
    builder = plugin.metadata.LayerZeroMetadataBuilder
    order = torch.randperm(len(step.memory), dtype=torch.int32)
    table, memory = step.table.clone(), step.memory.clone()
    used = table >= 0
    table[used] = order[table[used].long()]
    moved = torch.empty_like(memory)
    moved[order.long()] = memory
    step.table, step.memory = table, moved
    output = step.run(builder.update_block_table(None, metadata, table, None))
    torch.testing.assert_close(output.float(), step.expected(), atol=2e-2, rtol=2e-2)


def test_a_captured_step_serves_later_ones(plugin):
    """What a graph would do: the metadata of the capture, with vLLM's buffers written again."""
    step = Step(plugin, [(100, 1), (3, 1), (64, 1)])
    metadata = step.built(captured=True)
    later = Step(plugin, [(37, 1), (11, 1), (80, 1)])
    step.table[:, : later.width] = later.table
    step.lengths.copy_(later.lengths)
    torch.testing.assert_close(later.run(metadata).float(), later.expected(), atol=2e-2, rtol=2e-2)


def test_encoders_see_both_directions(plugin):
    step = Step(plugin, STEPS["prompts"])
    both = step.run(attn_type="encoder_only")
    key, value = (t.repeat_interleave(HEADS // KV_HEADS, 1).float() for t in (step.key, step.value))
    first = slice(0, 5)
    logits = torch.einsum("qhd,khd->hqk", step.query[first].float(), key[first]) * 0.125
    expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1), value[first])
    torch.testing.assert_close(both[first].float(), expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("split", [True, False])
def test_latents(plugin, split):
    """Decode steps of MLA: lists in memory that steps share, and the operation over vLLM's rows of latent and rotated."""
    latent = importlib.import_module(f"{OURS}.latent")
    builder = latent.LayerZeroMLABuilder.__new__(latent.LayerZeroMLABuilder)
    builder.kv_cache_spec, builder.device = types.SimpleNamespace(block_size=PAGE), torch.device("cpu")
    builder.most_requests, builder.kept = 4, None
    torch.manual_seed(0)
    memory = torch.randn(9, PAGE, 96)  # 64 of the latent, 32 that are rotated
    layer = latent.LayerZeroMLAImpl.__new__(latent.LayerZeroMLAImpl)
    layer.kv_lora_rank, layer.scale = 64, 0.1
    addresses = set()
    for lengths in ([20, 33, 1], [48, 5, 16]):
        table = torch.randperm(9).view(3, 3).int()
        step = builder._build_decode(table, torch.tensor(lengths, dtype=torch.int32), 48, None, None, 3, None)
        addresses.add(step.pages.indices.data_ptr())
        query = torch.randn(3, HEADS, 96)
        given = (query[..., :64], query[..., 64:]) if split else query
        metadata = types.SimpleNamespace(decode=step)
        output, lse = layer.forward_mqa(given, memory, metadata, None)
        for row, length in enumerate(lengths):
            keys = memory[table[row].long()].flatten(0, 1)[:length]
            logits = query[row] @ keys.T * 0.1
            torch.testing.assert_close(output[row], logits.softmax(-1) @ keys[:, :64], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(lse[row], logits.logsumexp(-1), atol=1e-4, rtol=1e-4)
    assert len(addresses) == 1
    backend = latent.LayerZeroMLABackend
    assert backend.get_name() == "LAYERZERO" and backend.get_supported_head_sizes() == [576]


def test_what_is_refused(plugin):
    impl = plugin.attention.LayerZeroImpl
    with pytest.raises(NotImplementedError, match="not causal"):
        impl(HEADS, SIZE, 1.0, KV_HEADS, sliding_window=4, attn_type="encoder_only")
    step = Step(plugin, STEPS["decode"])
    with pytest.raises(NotImplementedError, match="quantized outputs"):
        one = torch.ones(1)
        impl(HEADS, SIZE, 1.0, KV_HEADS).forward(
            step.layer, step.query, step.key, step.value, step.memory, step.built(), step.query, output_scale=one
        )
    common = step.common()
    common.causal = torch.tensor([True, False, True])
    builder = plugin.metadata.LayerZeroMetadataBuilder
    with pytest.raises(NotImplementedError, match="some requests"):
        builder._build(types.SimpleNamespace(page_size=PAGE), common, 0, False)
    backend = plugin.attention.LayerZeroBackend
    assert not backend.supports_head_size(60) and not backend.supports_head_size(520)
    assert not backend.supports_attn_type("encoder_decoder")


def test_memory_is_measured_without_metadata(plugin):
    step = Step(plugin, STEPS["decode"])
    layer = plugin.attention.LayerZeroImpl(HEADS, SIZE, 0.125, KV_HEADS)
    output = torch.full_like(step.query, torch.nan)
    assert not layer.forward(step.layer, step.query, step.key, step.value, step.memory, None, output).any()


def test_the_name(plugin):
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    assert registry.AttentionBackendEnum["LAYERZERO"] is registry.AttentionBackendEnum.CUSTOM
    assert registry.AttentionBackendEnum.CUSTOM.get_path() == plugin.root.BACKEND
    module, _, name = plugin.root.BACKEND.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert found is plugin.attention.LayerZeroBackend and found.get_name() == "LAYERZERO"
    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, "other.Backend")
    try:
        with pytest.raises(ValueError, match="other.Backend"):
            plugin.root.register_backend()
    finally:
        registry.register_backend(registry.AttentionBackendEnum.CUSTOM, plugin.root.BACKEND)


def test_the_entry_point(plugin):
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["layerzero"].partition(":")
    assert module == OURS and getattr(plugin.root, name) is plugin.root.register


def test_a_vllm_that_does_not_fit_is_a_warning(plugin, caplog, monkeypatch):
    def missing():
        raise AttributeError("no such slot")

    monkeypatch.setattr(plugin.root, "register_backend", missing)
    with caplog.at_level("WARNING", logger="layerzero"):
        plugin.root.register()
    assert "this vLLM is not served" in caplog.text and "no such slot" in caplog.text


def result(engine, tokens, seconds, logprob=-1.0):
    batch = {"tokens": tokens, "tokens_per_s": 8 / seconds, "first_token_ms": 10 * seconds, "step_ms": seconds}
    return {"engine": engine, "batches": {"2": batch}, "first_logprobs": [logprob] * 2}


def test_engines_are_compared_by_tokens_and_times(tmp_path):
    """Of bench/serving/vllm_backends.py: what it concludes from the results of its processes."""
    path = Path(__file__).parents[2] / "bench/serving/vllm_backends.py"
    spec = importlib.util.spec_from_file_location("vllm_backends", path)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    theirs, ours = (
        result("flash_attn", [[1, 2, 3], [4, 5, 6]], 2.0),
        result("layerzero", [[1, 2, 3], [4, 7, 6]], 1.0, -1.5),
    )
    row = bench.written([ours, theirs], {"flashinfer": "1"}, tmp_path / "out.json")[0]
    assert row["engine"] == "layerzero" and row["equal_answers"] == 0.5 and row["equal_first_tokens"] == 1.0
    assert row["equal_before_first_difference"] == 2.0 and row["first_logprob_difference"] == 0.5
    assert row["throughput"] == row["step"] == row["first_token"] == 2.0
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["failed"] == {"flashinfer": "1"} and written["engines"][0]["batches"]["2"]["tokens"] == [1, 2, 3]
    assert bench.compared([ours]) == []
    runs = ["flash_attn", "layerzero", "flash_attn"]
    assert [label for label, _ in bench.labelled(runs)] == ["flash_attn", "layerzero", "flash_attn, run 2"]
    again = bench.compared([theirs, ours, theirs | {"engine": "flash_attn, run 2"}])[-1]
    assert again["against"] == "flash_attn" and again["step"] == 1.0


def test_reasons_of_the_engine(plugin):
    from layerzero.integrations.serving.served import _unserved as served
    from layerzero.integrations.serving.served import unserved, unserved_latents

    assert unserved(64, torch.bfloat16, "auto", 16, False, device="h100") is None
    assert unserved(64, torch.bfloat16, "fp8", 16, False, device="h100") is None
    assert unserved_latents(torch.bfloat16, "auto", device="h100") is None
    assert "latents of fp8 next to a query of bfloat16" in unserved_latents(torch.bfloat16, "fp8")
    lz.configure(allow_sources=["zentorch"])
    served.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):  # as vLLM builds a model, with another device
            refused = unserved(64, torch.float16, "auto", 16, True, device="h100")
    finally:
        torch.set_default_dtype(torch.float32)
        lz.configure(allow_sources=[])
        served.cache_clear()
    assert "paged_attention: no kernel" in refused and "kv_append_paged" in refused
