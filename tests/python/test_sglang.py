"""The backends for SGLang: metadata and results of steps on the CPU, against attention written out in float64.

Runs with SGLang's own classes where SGLang is importable, else with stand-ins; test_sglang_signatures.py holds both to SGLang.
"""

import importlib
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import sglang_stand_in  # noqa: E402
from layerzero.host.import_hook import when_imported  # noqa: E402
from layerzero.torch import offsets  # noqa: E402
from sglang_step import HEADS, SIZE, Step, layer_of, one_rank  # noqa: E402

OURS = "layerzero.integrations.sglang"
NEEDED = (
    "sglang.srt.layers.attention.attention_registry", "sglang.srt.layers.sampler", "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.layers.radix_attention",
)  # fmt: skip


def is_importable():
    try:
        for name in NEEDED:
            importlib.import_module(name)
    except ImportError:
        return False
    return True


REAL = is_importable()


@pytest.fixture(scope="module")
def plugin():
    """LayerZero's modules over SGLang or the stand-ins, which are gone afterwards."""
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "sglang"}
    made = {} if REAL else sglang_stand_in.modules()
    if made:
        for name in before:
            del sys.modules[name]
    sys.modules.update(made)
    try:
        found = {
            name: importlib.import_module(f"{OURS}.{name}") for name in ("attention", "latent", "metadata", "sampling")
        }
        root = importlib.import_module(OURS)
        root.register()
        with one_rank(REAL):
            yield types.SimpleNamespace(
                root=root,
                kind=importlib.import_module("sglang.srt.layers.radix_attention").AttentionType,
                mode=importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode,
                **found,
            )
    finally:
        for name in [n for n in sys.modules if n in made or (not REAL and n.startswith(OURS))]:
            del sys.modules[name]


STEPS = {
    "decode": [(20, 1), (3, 1), (64, 1)],
    "prompts": [(0, 5), (0, 40), (0, 17)],
    "prefixes": [(16, 5), (30, 40)],
    "mixed": [(0, 9), (33, 20), (20, 1), (64, 1)],
}
OPTIONS = {
    "plain": {},
    "window": {"sliding_window_size": 11},
    "cap": {"logit_cap": 5.0},
    "sinks": {"sinks": torch.linspace(-1, 1, HEADS, dtype=torch.bfloat16)},
}


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step(plugin, step, options, page):
    Step(plugin, STEPS[step], page).check(**OPTIONS[options])


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("step", STEPS)
def test_eight_bit_caches_are_read_as_they_are_stored(plugin, step, stored):
    Step(plugin, STEPS[step], 16, stored=stored).check()


def test_heads_before_positions_in_memory(plugin):
    Step(plugin, STEPS["decode"], 16, heads_first=True).check()
    Step(plugin, STEPS["prefixes"], 16, heads_first=True).check()


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("step", ["decode", "prefixes"])
@pytest.mark.parametrize("layer", [0, 1])
def test_layers_with_windows_have_a_pool_of_their_own(plugin, layer, step, page):
    options = {"sliding_window_size": 11} if layer == 0 else {}
    Step(plugin, STEPS[step], page, split=True).check(layer_id=layer, **options)


def test_without_lengths_on_the_host(plugin):
    for name in ("decode", "prefixes", "prompts"):
        step = Step(plugin, STEPS[name])
        step.check(step.run(batch=step.batch(mirrored=False)))


def test_what_is_built(plugin):
    def built(name, **options):
        step = Step(plugin, STEPS[name], 16)
        backend = plugin.attention.LayerZeroBackend(step.runner())
        backend.init_forward_metadata(step.batch(**options))
        return backend.forward_metadata

    mixed = built("mixed")
    assert mixed.extend.query_start.tolist() == [0, 9, 29, 30, 31] and mixed.extend.longest == 20
    assert not mixed.extend.fresh and mixed.extend.pages.last_len.tolist() == [9, 5, 5, 1]
    assert mixed.extend.pages.indptr.tolist() == [0, 1, 5, 7, 12] and mixed.tables.shape == (4, 5)
    prompts = built("prompts")
    assert prompts.extend.fresh and "pages" not in vars(prompts.extend)  # which nobody needed
    assert not built("prompts", mirrored=False).extend.fresh  # nothing is known of the lengths
    assert offsets.known(mixed.extend.query_start)[:2] == (31, 20)  # so that no adapter has to guard them in each layer
    assert offsets.known(prompts.extend.query_start)[:2] == (
        int(prompts.extend.query_start[-1]),
        prompts.extend.longest,
    )
    assert offsets.known(built("prompts", mirrored=False).extend.query_start) is None
    decode = built("decode")
    assert decode.extend is None and decode.tables.shape == (3, 5) and decode.lengths.dtype == torch.int32


def test_encoders_see_both_directions(plugin):
    Step(plugin, STEPS["prompts"]).check(attn_type=plugin.kind.ENCODER_ONLY)


def test_keys_of_another_layer_are_read_from_the_cache(plugin):
    step = Step(plugin, STEPS["prompts"])
    step.run()
    step.key = step.value = None
    step.check(step.run())


def test_keys_that_another_operation_stored(plugin):
    step = Step(plugin, STEPS["decode"])
    before = [one.clone() for one in step.pool.buffers]
    backend = plugin.attention.LayerZeroBackend(step.runner())
    batch = step.batch()
    backend.init_forward_metadata(batch)
    out = backend.forward(step.query, step.key, step.value, layer_of(plugin.kind), batch, save_kv_cache=False)
    assert all(map(torch.equal, before, step.pool.buffers))
    step.check(out)


@pytest.mark.parametrize("split", [False, True])
def test_a_captured_step_serves_later_ones(plugin, split):
    """What a graph would do: the views of the capture, in memory that each replay writes."""
    step = Step(plugin, [(100, 1), (3, 1), (64, 1)], 16, split=split)
    backend = plugin.attention.LayerZeroBackend(step.runner())
    backend.init_cuda_graph_state(4, 4)
    backend.init_forward_metadata_out_graph(step.batch(), in_capture=True)
    captured = backend.forward_metadata
    assert captured.tables.shape == (3, step.context // 16)  # a graph serves all lengths
    step.check(step.run(backend, step.batch(), captured=True))
    later = Step(plugin, [(37, 1), (11, 1)], 16, split=split)
    batch = later.batch(padding=1)  # two requests in a graph for three
    backend.pool = later.pool
    backend.tables.slots, backend.tables.translate = (
        later.slots,
        later.pool.translate_loc_from_full_to_swa if split else None,
    )
    backend.init_forward_metadata_out_graph(batch)
    replayed = backend.forward_metadata
    assert replayed.tables.data_ptr() == captured.tables.data_ptr() and replayed.lengths.tolist() == [38, 12, 1]
    backend.forward_metadata = captured
    if split:
        assert captured.window_slots[2] == 0
        captured.window_slots = captured.window_slots[:2]
    later.query = torch.cat([later.query, later.query[:1]])
    later.check(later.run(backend, batch, captured=True))


def test_what_is_refused(plugin):
    step = Step(plugin, STEPS["prompts"])
    for options, text in (
        ({"is_cross_attention": True}, "an encoder and a decoder"),
        ({"use_irope": True}, "within chunks"),
        ({"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, "not tanh"),
        ({"attn_type": plugin.kind.DECODER_BIDIRECTIONAL}, "decoder_bidirectional"),
        ({"attn_type": plugin.kind.ENCODER_ONLY, "sliding_window_size": 3}, "not causal"),
        ({"pos_encoding_mode": "ROPE_LLAMA"}, "ROPE_LLAMA"),
        ({"xai_temperature_len": 5}, "temperature by position"),
    ):
        with pytest.raises(NotImplementedError, match=text):
            step.run(**options)
    backend = plugin.attention.LayerZeroBackend(step.runner())
    with pytest.raises(NotImplementedError, match="TARGET_VERIFY"):
        backend.init_forward_metadata(step.batch(mode=plugin.mode.TARGET_VERIFY))
    with pytest.raises(NotImplementedError, match="breakable"):
        backend.init_forward_metadata_out_graph(step.batch(), in_capture=True)
    with pytest.raises(RuntimeError, match="init_forward_metadata"):
        backend.forward_extend(step.query, step.key, step.value, layer_of(plugin.kind), step.batch())
    backend.init_forward_metadata(step.batch())
    with pytest.raises(NotImplementedError, match="rel_bias"):
        backend.forward(step.query, step.key, step.value, layer_of(plugin.kind), step.batch(), rel_bias=torch.ones(1))


def test_a_runner_that_is_not_served_is_told_why(plugin):
    step = Step(plugin, STEPS["decode"])
    create = plugin.root.create_attention_backend
    assert isinstance(create(step.runner()), plugin.attention.LayerZeroBackend)
    algorithm = types.SimpleNamespace(is_none=lambda: False)
    for options, text in (
        ({"spec_algorithm": algorithm}, "speculative decoding"),
        ({"kv_cache_dtype": torch.uint8}, "cache of torch.uint8"),
        ({"kv_cache_dtype": torch.float16}, "torch.float16 in a model of torch.bfloat16"),
        ({"kv_index_translator": types.SimpleNamespace(is_translating=True)}, "unified"),
        ({"kv_cache_dtype_str": "mxfp8"}, "scales of blocks"),
        ({"use_mla_backend": True}, "latents of None"),
    ):
        with pytest.raises(ValueError, match=f"--attention-backend layerzero: .*{text}"):
            create(step.runner(**options))
    model = step.runner().model_config
    model.is_encoder_decoder, model.attention_chunk_size = True, 8192
    with pytest.raises(ValueError, match="an encoder and a decoder; attention within chunks"):
        create(step.runner(model_config=model))


def latents(plugin, lengths, page=16):
    step = Step(plugin, [(length - 1, 1) for length in lengths], page)
    memory = torch.randn((sum(lengths) // page + 12) * page, 1, 576).to(torch.bfloat16)

    class LatentPool:
        def get_key_buffer(self, layer_id):
            return memory

        def set_kv_buffer(self, layer, loc, k, v):
            memory[loc] = k

        def set_mla_kv_buffer(self, layer, loc, k, rotated):
            memory[loc] = torch.cat([k, rotated], -1)

    model = types.SimpleNamespace(
        is_encoder_decoder=False, context_len=step.context, kv_lora_rank=512, qk_rope_head_dim=64
    )
    runner = step.runner(token_to_kv_pool=LatentPool(), model_config=model, use_mla_backend=True)
    return step, memory, plugin.root.create_attention_backend(runner)


def latent_layer(plugin, heads=4):
    return layer_of(
        plugin.kind, tp_q_head_num=heads, tp_k_head_num=1, head_dim=576, qk_head_dim=576, v_head_dim=512, scaling=0.1
    )


def over_latents(step, memory, query):
    found = []
    for row, length in enumerate(step.lengths):
        keys = memory[step.slots[step.rows[row], :length].long(), 0].double()
        found.append((query[row].double() @ keys.T * 0.1).softmax(-1) @ keys[:, :512])
    return torch.stack(found).flatten(1)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("captured", [True, False])
def test_latents(plugin, split, captured):
    step, memory, backend = latents(plugin, [21, 4, 65])
    assert isinstance(backend, plugin.latent.LayerZeroMLABackend)
    batch = step.batch()
    if captured:
        backend.init_cuda_graph_state(4, 4)
        other = step.batch(padding=1)
        backend.init_forward_metadata_out_graph(other, in_capture=True)
        backend.init_forward_metadata_out_graph(batch)
        assert backend.lists.indices.data_ptr() == backend.kept.indices.data_ptr()
    else:
        backend.init_forward_metadata(batch)
    query, new = torch.randn(3, 4, 576).to(torch.bfloat16), torch.randn(3, 1, 576).to(torch.bfloat16)
    layer = latent_layer(plugin)
    if split:
        parts = {"q_rope": query[..., 512:], "k_rope": new[..., 512:]}
        got = backend.forward(query[..., :512].flatten(1), new[..., :512], new[..., :512], layer, batch, **parts)
    else:
        got = backend.forward(query.flatten(1), new, new[..., :512], layer, batch)
    assert torch.equal(memory[step.places()], new)
    torch.testing.assert_close(got.double(), over_latents(step, memory, query), atol=2e-2, rtol=2e-2)


def test_prefill_of_latents_is_over_keys_of_each_head(plugin):
    step, _, backend = latents(plugin, [6, 11])
    step.requests = [(0, 6), (3, 8)]
    batch = step.batch(mode=plugin.mode.EXTEND)
    backend.init_forward_metadata(batch)
    heads, tokens = 4, 14
    layer = layer_of(
        plugin.kind,
        tp_q_head_num=heads,
        tp_k_head_num=heads,
        tp_v_head_num=heads,
        head_dim=48,
        qk_head_dim=48,
        v_head_dim=32,
    )
    query, key = (torch.randn(tokens, heads, 48).to(torch.bfloat16) for _ in range(2))
    value = torch.randn(tokens, heads, 32).to(torch.bfloat16)
    batch.mha_return_lse = True
    own, lse = backend.forward(query.flatten(1), key, value, layer, batch, save_kv_cache=False)
    batch.attn_attend_prefix_cache, batch.prefix_chunk_idx = True, 0
    batch.prefix_chunk_cu_seq_lens = torch.tensor([[0, 0, 3]], dtype=torch.int32)
    batch.prefix_chunk_max_seq_lens = [3]
    prefix, more = backend.forward(query.flatten(1), key[:3], value[:3], layer, batch, save_kv_cache=False)
    begins = 0
    for past, new in step.requests:
        part = slice(begins, begins + new)
        begins += new
        logits = torch.einsum("qhd,khd->hqk", query[part].double(), key[part].double()) * 0.125
        logits = logits.masked_fill(torch.ones(new, new, dtype=torch.bool).triu(1), -torch.inf)
        torch.testing.assert_close(lse[part].double(), logits.logsumexp(-1).T, atol=1e-2, rtol=1e-2)
        expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1), value[part].double())
        torch.testing.assert_close(own[part].double(), expected, atol=2e-2, rtol=2e-2)
        if past:
            logits = torch.einsum("qhd,khd->hqk", query[part].double(), key[:3].double()) * 0.125
            expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1), value[:3].double())
            torch.testing.assert_close(prefix[part].double(), expected, atol=2e-2, rtol=2e-2)
            torch.testing.assert_close(more[part].double(), logits.logsumexp(-1).T, atol=1e-2, rtol=1e-2)
        else:
            assert not prefix[part].any() and (more[part] == -torch.inf).all()
    with pytest.raises(NotImplementedError, match="disable-prefill-cuda-graph"):
        backend.forward(query.flatten(1), key, value, latent_layer(plugin), batch)


def test_one_call_over_a_prefix_and_new_tokens(plugin):
    step, _, backend = latents(plugin, [11])
    step.requests = [(3, 8)]
    batch = step.batch(mode=plugin.mode.EXTEND)
    batch.mha_one_shot = True
    backend.init_forward_metadata(batch)
    layer = layer_of(
        plugin.kind, tp_q_head_num=2, tp_k_head_num=2, tp_v_head_num=2, head_dim=48, qk_head_dim=48, v_head_dim=32
    )
    query, key, value = torch.randn(8, 2, 48), torch.randn(11, 2, 48), torch.randn(11, 2, 32)
    got = backend.forward(query.flatten(1), key, value, layer, batch, save_kv_cache=False)
    logits = torch.einsum("qhd,khd->hqk", query.double(), key.double()) * 0.125
    logits = logits.masked_fill(torch.ones(8, 11, dtype=torch.bool).triu(4), -torch.inf)
    expected = torch.einsum("hqk,khd->qhd", logits.softmax(-1), value.double()).flatten(1)
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)


def test_the_way_of_layers_with_latents(plugin, monkeypatch):
    module = importlib.import_module("sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods")
    methods = module.AttnForwardMethod
    handlers = importlib.import_module("sglang.srt.models.deepseek_common.attention_backend_handler")
    assert handlers.AttentionBackendRegistry._handlers["layerzero"] is plugin.latent.forward_method

    def way(mode, prefixes, disabled=False):
        attention = types.SimpleNamespace(disable_chunked_prefix_cache=disabled)
        batch = types.SimpleNamespace(forward_mode=mode, extend_prefix_lens_cpu=prefixes)
        return plugin.latent.forward_method(attention, batch)

    assert way(plugin.mode.DECODE, None) == methods.MLA
    assert way(plugin.mode.EXTEND, [0, 0], True) == way(plugin.mode.EXTEND, [0, 4]) == methods.MHA_CHUNKED_KV
    assert way(plugin.mode.EXTEND, [0, 4], True) == methods.MHA_ONE_SHOT
    monkeypatch.setattr(handlers, "is_in_breakable_cuda_graph", lambda: True)
    assert way(plugin.mode.EXTEND, [0, 0]) == methods.MLA


def test_the_names(plugin):
    arguments = importlib.import_module("sglang.srt.server_args")
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    samplers = importlib.import_module("sglang.srt.layers.sampler")
    plugin.root.register()
    assert arguments.ATTENTION_BACKEND_CHOICES.count("layerzero") == 1
    assert "layerzero" in arguments.SAMPLING_BACKEND_CHOICES
    assert registry.ATTENTION_BACKENDS["layerzero"] is plugin.root.create_attention_backend
    assert samplers._CUSTOM_SAMPLER_FACTORIES["layerzero"] is plugin.root.create_sampler


def test_a_module_that_comes_later_is_served_too(plugin, monkeypatch, tmp_path):
    (tmp_path / "sglang_comes_later.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []
    when_imported("sglang_comes_later", seen.append)
    when_imported("sglang_comes_later", seen.append)
    assert not seen and importlib.import_module("sglang_comes_later") is seen[0] and len(seen) == 1


def test_the_entry_point(plugin):
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["sglang.srt.plugins"]["layerzero"].partition(":")
    assert module == OURS and getattr(plugin.root, name) is plugin.root.register


def test_an_entry_point_without_an_installed_distribution(plugin, tmp_path):
    from importlib.metadata import distributions

    launch = importlib.import_module(f"{OURS}.launch_server")
    folder = launch.write_entry_point(tmp_path)
    (found,) = distributions(path=[str(folder)])
    (entry,) = found.entry_points
    assert (entry.group, entry.name) == (launch.GROUP, "layerzero") and entry.load() is plugin.root.register


def test_an_sglang_that_does_not_fit_is_a_warning(plugin, caplog, monkeypatch):
    def missing():
        raise AttributeError("no such list")

    monkeypatch.setattr(plugin.root, "_add_choices", missing)
    with caplog.at_level("WARNING", logger="layerzero"):
        plugin.root.register()
    assert "this SGLang is not served" in caplog.text and "no such list" in caplog.text


# ---- sampling


def info_of(rows, k=None, p=None, min_p=None, temperature=1.0, **further):
    given = {
        "temperatures": torch.full((rows, 1), temperature), "is_all_greedy": False, "sampling_seed": None,
        "top_ks": torch.full((rows,), k or 1 << 30, dtype=torch.int32), "need_top_k_sampling": k is not None,
        "top_ps": torch.full((rows,), 1.0 if p is None else p), "need_top_p_sampling": p is not None,
        "min_ps": torch.full((rows,), min_p or 0.0), "need_min_p_sampling": min_p is not None,
        "has_custom_logit_processor": False, "grammars": None,
    }  # fmt: skip
    return types.SimpleNamespace(**(given | further))


def kept(logits, k=None, p=None, min_p=None, temperature=1.0):
    """The distribution that SGLang's rules leave, in float64."""
    probs, order = (logits.double() / temperature).softmax(-1).sort(descending=True)
    stays = torch.ones_like(probs, dtype=torch.bool)
    if k is not None:
        stays &= torch.arange(len(probs)) < k
    if p is not None:
        stays &= probs.cumsum(-1) - probs < p
    if min_p is not None:
        stays &= probs >= min_p * probs[0]
    probs = probs * stays
    return torch.zeros_like(probs).scatter(0, order, probs / probs.sum())


RULES = [
    {}, {"k": 5}, {"p": 0.7}, {"min_p": 0.2}, {"k": 6, "p": 0.6}, {"k": 3, "p": 0.9}, {"p": 0.8, "min_p": 0.15},
    {"k": 4, "p": 0.95, "min_p": 0.1}, {"k": 7, "p": 0.8, "temperature": 0.7}, {"temperature": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "-".join(f"{n}{v}" for n, v in rules.items()) or "plain")
@pytest.mark.parametrize("with_logprobs", [False, True])
def test_tokens_have_the_distribution_of_sglang(plugin, rules, with_logprobs):
    torch.manual_seed(3)
    rows = 20000
    logits = torch.randn(12) * 1.5
    sampler = plugin.sampling.LayerZeroSampler.__new__(plugin.sampling.LayerZeroSampler)
    torch.nn.Module.__init__(sampler)
    sampler.enable_deterministic = False
    info, wanted = info_of(rows, **rules), kept(logits, **rules)
    many = logits.expand(rows, -1).clone()
    if with_logprobs:
        probs = (many / info.temperatures).softmax(-1)
        simple = not (info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling)
        got = sampler._sample_from_probs(probs, info, None, simple)
        tokens = got[0] if isinstance(got, tuple) else got
    else:
        output = types.SimpleNamespace(next_token_logits=many)
        tokens = sampler.forward(output, info, False, [], [], torch.zeros(rows))
    share = torch.bincount(tokens.long(), minlength=12) / rows
    assert not share[wanted == 0].any()  # nothing else is drawn
    torch.testing.assert_close(share.double(), wanted, atol=0.02, rtol=0)


def test_greedy_and_seeded_steps_are_sglang_s(plugin):
    sampler = plugin.sampling.LayerZeroSampler.__new__(plugin.sampling.LayerZeroSampler)
    torch.nn.Module.__init__(sampler)
    sampler.enable_deterministic = False
    logits = torch.randn(4, 9)
    output = types.SimpleNamespace(next_token_logits=logits.clone())
    if not REAL:
        tokens = sampler.forward(output, info_of(4, is_all_greedy=True), False, [], [], torch.zeros(4))
        assert torch.equal(tokens, logits.argmax(-1))
        seeded = info_of(4, k=3, sampling_seed=torch.arange(4))
        assert torch.equal(sampler.forward(output, seeded, False, [], [], torch.zeros(4)), logits.argmax(-1))
    assert (plugin.sampling.sample(torch.full((2, 5), torch.nan), info_of(2, k=2), None) == 0).all()


def test_reasons_of_the_engine(plugin):
    from layerzero.integrations.serving.served import unserved

    for page in (1, 16, 64):
        assert unserved(128, torch.bfloat16, None, page, True, device="h100") is None
    refused = unserved(520, torch.bfloat16, None, 1, False, device="h100")  # the reference does not count
    assert "paged_prefill_attention: no kernel" in refused and "wants <= 512, got 520" in refused
    assert SIZE % 8 == 0 and lz.__version__
