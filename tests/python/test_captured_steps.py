"""Decode steps as graphs, without a device: what a capture records is run again at each replay. tests/gpu/test_captured.py captures."""

# ruff: noqa: F811  (fixtures are imported)

import contextlib
import copy
import json
import pickle
import threading
import types

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import block_families  # noqa: E402
import layerzero as lz  # noqa: E402
from captured_fakes import capturing, generated, llama, pair, replayed  # noqa: E402, F401
from layerzero.integrations.transformers.arguments import cache_argument, cache_of  # noqa: E402
from layerzero.integrations.transformers.caches import rows_cache  # noqa: E402
from layerzero.integrations.transformers.run import captured, captured_step, experts  # noqa: E402
from layerzero.integrations.transformers.run import plan as plan_module  # noqa: E402
from layerzero.integrations.transformers.run.products import side_by_side  # noqa: E402
from layerzero.torch import captures  # noqa: E402

CACHES = [None, "static"]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cache", CACHES)
def test_the_same_tokens(cache, padded, replayed, pair):
    theirs, ours, report = pair
    for _ in range(2):
        assert torch.equal(generated(ours, cache, padded), generated(theirs, cache, padded))
    # All but the first over each memory; memory that is allocated again may have the same address.
    assert replayed.replays in (20, 21, 22) and replayed.captures in (1, 2, 3)  # the prompt's with them
    assert report.replaced["decoder"]["captured"] == replayed.replays
    assert f"{replayed.replays} as CUDA graphs" in str(report)


def test_a_growing_cache_needs_no_other_graph_until_its_memory_is_full(replayed, monkeypatch, pair):
    monkeypatch.setattr(rows_cache, "_ROOM", 8)
    theirs, ours, _ = pair
    assert torch.equal(generated(ours, None, tokens=40), generated(theirs, None, tokens=40))
    assert 2 <= replayed.captures <= 5
    assert 39 - 2 * replayed.captures <= replayed.replays < 39


def test_logits_of_steps_with_a_cache_of_another_length(replayed, pair):
    theirs, ours, _ = pair
    ids = torch.arange(40).view(2, 20)
    for model_cache in (transformers.DynamicCache, None):
        caches = [model_cache(config=theirs.config) if model_cache else None for _ in range(2)]
        with torch.inference_mode():
            outputs = [m(ids, past_key_values=c, use_cache=True) for m, c in zip((theirs, ours), caches, strict=True)]
            for step in range(3):
                token = torch.full((2, 1), 7 + step)
                outputs = [
                    m(token, past_key_values=o.past_key_values) for m, o in zip((theirs, ours), outputs, strict=True)
                ]
                torch.testing.assert_close(outputs[1].logits, outputs[0].logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cache", CACHES)
def test_steps_of_several_positions(cache, padded, replayed, pair):
    """Prompts in parts, as assisted generation and chunked prompts call: each part is compared, twice over the same memory."""
    theirs, ours, report = pair
    made = []
    for _ in range(3):
        mask = torch.ones(2, 0, dtype=torch.int64)
        caches = [
            transformers.StaticCache(config=m.config, max_cache_len=400) if cache else None for m in (theirs, ours)
        ]
        for length in (20, 1, 3, 7, 16, 33, 64, 100):
            ids = torch.randint(0, 100, (2, length), generator=torch.Generator().manual_seed(length))
            further = torch.ones(2, length, dtype=torch.int64)
            further[0, : 5 if padded and not mask.shape[1] else 0] = 0
            mask = torch.cat([mask, further], 1)
            given = {"attention_mask": mask} if padded else {}
            with torch.inference_mode():
                outs = [
                    m(ids, use_cache=True, **given, **(cache_argument(m, c) if c is not None else {}))
                    for m, c in zip((theirs, ours), caches, strict=True)
                ]
            caches = [cache_of(out) for out in outs]
            seen = further.bool()
            torch.testing.assert_close(outs[1].logits[seen], outs[0].logits[seen], rtol=1e-4, atol=1e-5)
        made.append(caches)  # no two of them at one address
    assert not report.replaced["decoder"].get("not_captured")


def test_a_prompt_of_a_length_seen_before_is_a_graph(replayed, pair):
    theirs, ours, _ = pair
    cache = transformers.StaticCache(config=ours.config, max_cache_len=128)
    for length in (20, 31, 25):
        ids = torch.arange(2 * length).view(2, length) % 100
        cache.reset()
        with torch.no_grad():
            logits = ours(ids, **cache_argument(ours, cache)).logits
            torch.testing.assert_close(logits, theirs(ids, use_cache=False).logits, rtol=1e-4, atol=1e-5)
        assert cache.get_seq_length() == length
    assert (replayed.captures, replayed.replays) == (1, 2)


def test_tokens_of_prompt_lookup(replayed, pair):
    theirs, ours, _ = pair
    ids = torch.arange(3, 23).repeat(2)[None]
    options = {"max_new_tokens": 30, "do_sample": False, "prompt_lookup_num_tokens": 3}
    assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))
    assert replayed.replays > 5


def test_a_static_cache_that_ends_within_the_padding(replayed, pair):
    theirs, ours, _ = pair
    ids = torch.arange(40).view(2, 20)
    for size in (20, 31, 32):
        cache = transformers.StaticCache(config=ours.config, max_cache_len=size)
        with torch.inference_mode():
            logits = ours(ids, **cache_argument(ours, cache)).logits
            torch.testing.assert_close(logits, theirs(ids, use_cache=False).logits, rtol=1e-4, atol=1e-5)
        assert cache.get_seq_length() == 20


SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What their layers have that Llama's have not.
FAMILIES = {
    "Phi3": {},  # one product for queries, keys and values, and one for gate and up
    "Olmo2": {},  # norms of results, and of all queries and keys
    "Glm": {"head_dim": 16},  # a part of each head is turned, columns in pairs
    "Starcoder2": {"sliding_window": None},  # LayerNorm with biases, an MLP without a gate
    "StableLm": {},
    "Cohere": {},  # attention and MLP side by side, without biases
    "Qwen2": {"use_sliding_window": False},
    "Qwen3": {"head_dim": 16},
}


def of_family(name, **further):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | FAMILIES[name] | further)
    theirs = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():  # norms whose weights are ones show less
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 8)
    ours = copy.deepcopy(theirs)
    return theirs, ours, lz.kernelize(ours, quiet=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_of_other_families(family, capturing):
    if not hasattr(transformers, f"{family}ForCausalLM"):
        pytest.skip("this Transformers does not have it")
    theirs, ours, report = of_family(family)
    capturing.captures = capturing.replays = 0
    for padded in (False, True):
        for cache in CACHES:
            for _ in range(2):
                assert torch.equal(generated(ours, cache, padded), generated(theirs, cache, padded))
    entry = report.replaced["decoder"]
    assert capturing.replays > 60 and entry["captured"] >= capturing.replays, report
    assert not entry.get("not_captured"), entry
    ids = torch.arange(40).view(2, 20)
    with torch.no_grad():  # without a cache, call by call
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "further", "why"),
    [
        ("Mistral", {"sliding_window": 8}, "has layers with a sliding window or another kind of attention"),
        ("Granite", {"embedding_multiplier": 3.0}, "its model does more around its layers than embed and normalise"),
        ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "it has experts"),
    ],
)
def test_the_report_says_why_steps_are_not_captured(family, further, why, capturing, monkeypatch):
    monkeypatch.setitem(FAMILIES, family, {})
    _, ours, report = of_family(family, **further)
    plans = [plan for _, plan in plan_module.plans_of(ours)]
    assert [plan.stack.not_captured for plan in plans] == [why], report
    monkeypatch.setattr(plan_module.StackPlan, "takes_programs", lambda self, hidden: False)  # as on a device
    generated(ours, None)
    (reason,) = report.replaced["decoder"]["aside"]
    assert reason.endswith(f"its steps are not captured: {why}")


def test_gates_that_are_replaced_alone_are_no_change(capturing, monkeypatch):
    """As on a device, where no kernel takes experts whose weights are stored transposed."""
    judge = experts.judge

    def on_device(module, found):
        judge(module, found)["reason"] = "expert weights are stored transposed"
        return module.__dict__["_layerzero_experts"]

    monkeypatch.setattr(experts, "judge", on_device)
    monkeypatch.setattr(plan_module.StackPlan, "device", property(lambda self: torch.device("cuda")))
    model = block_families.build("gpt_oss")
    report = lz.kernelize(model, quiet=True)
    reasons = str(report)
    assert "experts' gate" in report.replaced and "its steps are not captured: " in reasons, reasons
    assert "was changed" not in reasons, reasons
    parts = [part for part in model.modules() if experts.looks_like_experts(part)]
    parts[0]._apply_gate = types.MethodType(type(parts[0])._apply_gate, parts[0])  # somebody else's
    with torch.no_grad():
        model(torch.arange(3, 13)[None])
    asides = [plan.why_aside for _, plan in plan_module.plans_of(model)]
    assert not asides or "an attribute of a module was changed after kernelize" in asides[0], asides


def test_few_lengths_of_steps():
    lengths = [captured_step.padded_length(length) for length in range(1, 513)]
    assert all(padded >= length for length, padded in enumerate(lengths, 1))
    assert sorted(set(lengths)) == [1, 2, 4, 8, 16, 32, 48, *range(64, 513, 64)]


def test_new_weights_and_another_policy_are_captured_again(replayed, pair):
    theirs, ours, _ = pair
    generated(ours, "static", tokens=3)
    before = replayed.captures
    for model in (theirs, ours):
        model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.ones(96, 64))
    assert torch.equal(generated(ours, "static"), generated(theirs, "static"))
    assert replayed.captures > before
    before = replayed.captures
    with lz.policy(prefer_sources=["torch"]):
        assert torch.equal(generated(ours, "static"), generated(theirs, "static"))
    assert replayed.captures > before


def test_a_step_that_cannot_be_captured_runs_call_by_call(replayed, monkeypatch, pair):
    def refuse(warm_up, run, pool):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(captures, "replay_of", refuse)
    theirs, ours, report = pair
    assert torch.equal(generated(ours, None), generated(theirs, None))
    (reason,) = report.replaced["decoder"]["not_captured"]
    assert reason == "its step cannot be captured: RuntimeError: operation not permitted when stream is capturing"
    assert "10 call by call: its step cannot be captured" in str(report)


def test_the_report_of_a_cpu_says_nothing_of_graphs():
    _, ours, report = llama()
    generated(ours, None)
    assert report.replaced["decoder"].keys().isdisjoint({"captured", "not_captured"})


@pytest.mark.parametrize(
    ("past", "capacity"), [(0, 512), (255, 512), (256, 768), (1024, 1536), (8192, 10240), (30000, 40960)]
)
def test_few_sizes_of_memories_on_a_device(past, capacity):
    assert rows_cache._capacity(past, 1, on_cuda=True) == capacity
    assert rows_cache._capacity(past, 1, on_cuda=False) == max(past + 257, 2 * past)


def test_generate_compiles_nothing_by_itself_where_steps_are_captured():
    _, ours, _ = llama()
    cache = transformers.StaticCache(config=ours.config, max_cache_len=32)
    given, plain = {"cache": cache}, transformers.GenerationConfig()
    asked = transformers.GenerationConfig(compile_config=transformers.CompileConfig())

    class OnDevice(types.SimpleNamespace):
        def _valid_auto_compile_criteria(self, model_kwargs, generation_config):
            return True

    model = OnDevice(device=torch.device("cuda"))
    assert captured.AUTO_COMPILE(model, given, plain) is False
    assert captured.AUTO_COMPILE(model, given, asked) is True
    assert captured.AUTO_COMPILE(model, {"cache": transformers.DynamicCache()}, plain) is True
    assert ours._valid_auto_compile_criteria.func is captured.AUTO_COMPILE
    assert lz.unkernelize(ours)
    assert "_valid_auto_compile_criteria" not in ours.__dict__


def test_a_compiled_model_is_not_compiled_again_for_each_count():
    _, ours, _ = llama()
    compiled = torch.compile(ours, backend="eager", dynamic=False)
    ids = torch.arange(20)[None]
    with torch.inference_mode(), torch._dynamo.config.patch(error_on_recompile=True):
        first = compiled(ids, use_cache=False).logits
        for _ in range(3):
            assert torch.equal(compiled(ids, use_cache=False).logits, first)


def test_a_step_advances_without_reading_a_number():
    """torch's parser takes a tensor of one number for a Scalar where it can, and the host would wait for it inside a capture."""
    inputs = captured_step.Inputs(torch.zeros(2, 1, dtype=torch.int64), None, None)
    step, counters = (
        captured_step.Step(inputs, 8),
        [torch.zeros(1, dtype=torch.int64), torch.zeros((), dtype=torch.int64)],
    )
    step.advance_by(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step.advance(counters)
    assert {"aten::item", "aten::_local_scalar_dense"}.isdisjoint(event.name for event in profile.events())
    assert [int(counter) for counter in counters] == [1, 1] and step.lengths.tolist() == [2, 2]


def test_captures_of_two_models_take_turns(monkeypatch, replayed, pair):
    """What one of them waits for, as moves of weights do, would end the capture of the other."""
    inside = []

    @contextlib.contextmanager
    def launches(on):
        taken = []
        other = threading.Thread(target=lambda: taken.append(captures.ONE_AT_A_TIME.acquire(blocking=False)))
        other.start()
        other.join()
        inside.append(taken == [False])
        yield

    monkeypatch.setattr(captured, "dependent_launches", launches)
    generated(pair[1], None)
    assert inside and all(inside)


POLICIES = [{"locks": {"mlp.linear": "torch.linear"}}, {"prefer_sources": ["torch"]}, {"deterministic": True}]


@pytest.mark.parametrize("keys", [*POLICIES, {"perfdb": {"enabled": False}}])
def test_a_policy_that_leaves_no_choice_to_measurements(keys):
    from layerzero.host.policy import may_measure

    assert may_measure()
    with lz.policy(**keys):
        assert not may_measure()


def test_a_dispatch_table_leaves_no_choice_to_measurements(monkeypatch):
    from layerzero.host import policy

    text = json.loads(policy._layerzero.policy_text(0))
    text["keys"]["table"]["value"] = "table.json"
    monkeypatch.setattr(policy, "_layerzero", types.SimpleNamespace(policy_text=lambda scope: json.dumps(text)))
    assert not policy._traits.__wrapped__(0, 0).may_measure


def test_weights_of_one_input_while_a_model_is_kernelized(capturing):
    theirs, ours, _ = llama()
    generated(ours, None)
    own = ours.model.layers[0].self_attn
    group = [part.weight for part in (own.q_proj, own.k_proj, own.v_proj)]
    assert side_by_side(group) is not None
    again = pickle.loads(pickle.dumps(ours))
    assert side_by_side([getattr(again.model.layers[0].self_attn, f"{n}_proj").weight for n in "qkv"]) is None
    own.q_proj.weight.data = own.q_proj.weight.detach().clone()
    assert torch.equal(generated(ours, None), generated(theirs, None)) and side_by_side(group) is not None
    own.v_proj.weight = torch.nn.Parameter(own.v_proj.weight.detach().clone())
    place = own.k_proj.weight.data_ptr()
    lz.unkernelize(ours)
    assert own.k_proj.weight.data_ptr() != place
    assert all(parameter.untyped_storage().nbytes() == parameter.nbytes for parameter in ours.parameters())
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def test_a_torch_mode_at_a_new_guard_keeps_the_weights(capturing):
    from torch._subclasses.fake_tensor import FakeTensorMode

    _, ours, _ = llama()
    plan = ours.model.__dict__["_layerzero_decoder"]
    group = [part.weight for part in (ours.model.layers[0].mlp.gate_proj, ours.model.layers[0].mlp.up_proj)]
    for part in group:
        part.data = part.detach().clone()
    with FakeTensorMode(allow_non_fake_inputs=True):
        plan.before_guard()
    assert all(type(part.data) is torch.Tensor for part in group) and side_by_side(group) is None
    plan.before_guard()
    assert side_by_side(group) is not None
