"""block.decoder of models some of whose layers keep a state: the model's own result, through caches of both kinds."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import GREEDY, HYBRIDS, TOLERANCE, build, error, ids_of, plan_of  # noqa: E402
from layerzero.integrations.transformers.run import block  # noqa: E402


@pytest.fixture(params=HYBRIDS)
def name(request):
    kind, _ = HYBRIDS[request.param]
    if not hasattr(transformers, f"{kind}ForCausalLM"):
        pytest.skip("this version of Transformers has no such model")
    return request.param


def forward(model, **given):
    with torch.inference_mode():
        return model(**given)


def pair(name="qwen3_next", dtype=torch.float32):
    """The model as a program, and its own code."""
    model = build(name, dtype)
    own = copy.deepcopy(model)
    assert "decoder" in lz.kernelize(model).replaced
    return model, own


def masked(ids, kind):
    mask = torch.ones_like(ids)
    mask[0, {"left": slice(0, 3), "right": slice(-3, None), "midst": slice(4, 6)}[kind]] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_is_one_program(name, dtype):
    (model, own), exact, ids = pair(name, dtype), build(name), ids_of(8)
    for given in ({"input_ids": ids}, *(masked(ids, kind) for kind in ("left", "right", "midst"))):
        seen = given.get("attention_mask", torch.ones_like(ids)).bool()
        expected, actual, wanted = (forward(m, **given).logits[seen] for m in (own, model, exact))
        if dtype == torch.float32:
            assert error(actual, expected) <= TOLERANCE
        else:
            assert error(actual, wanted) <= 1.25 * error(expected, wanted)
    assert not plan_of(model).why_aside
    assert lz.unkernelize(model) and torch.equal(forward(model, **given).logits, forward(own, **given).logits)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"cache_implementation": "static"}])
def test_generation(name, options):
    model, own = pair(name)
    for given in ({"input_ids": ids_of()}, masked(ids_of(), "left")):
        with torch.inference_mode():
            actual, expected = (each.generate(**given, **GREEDY | options) for each in (model, own))
        assert torch.equal(actual, expected)
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("first", ["program", "own"])
def test_a_cache_that_changes_hands(name, first, kind):
    """A prompt shorter than the convolution's window by one, tokens and more of the prompt by the other."""
    (model, own), ids = pair(name), ids_of(2, 14)
    expected = forward(own, input_ids=ids).logits
    if kind == "static":
        cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    else:
        cache = transformers.DynamicCache(config=model.config)
    order, logits, begin = (model, own) if first == "program" else (own, model), [], 0
    for turn, end in enumerate((2, 3, 4, 9, 10, 13, 14)):
        given = {"input_ids": ids[:, begin:end], "past_key_values": cache, "use_cache": True}
        logits.append(forward(order[turn % 2], **given).logits)
        begin = end
    assert error(torch.cat(logits, dim=1), expected) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_a_prompt_in_parts(name, monkeypatch):
    monkeypatch.setattr(block, "PIECE", 5)
    (model, own), ids = pair(name), ids_of(1, 23)
    for given in ({"use_cache": True}, {"use_cache": False}):
        results = [forward(each, input_ids=ids, **given) for each in (model, own)]
        assert error(results[0].logits, results[1].logits) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_a_copied_cache_and_one_that_begins_anew():
    (model, own), ids = pair(), ids_of(2, 9)
    cache = forward(model, input_ids=ids[:, :-1], use_cache=True).past_key_values
    expected = forward(own, input_ids=ids).logits[:, -1:]
    for other in (copy.deepcopy(cache), cache):
        given = {"input_ids": ids[:, -1:], "past_key_values": other, "use_cache": True}
        assert error(forward(model, **given).logits, expected) <= TOLERANCE
    assert not plan_of(model).why_aside

    own_cache = forward(own, input_ids=ids, use_cache=True).past_key_values
    with torch.inference_mode():
        cache.reset()
        own_cache.reset()
    stays = own_cache.get_seq_length() > 0  # 5.17's keys do, as zeros: the model's own code runs
    again, expected = (
        forward(each, input_ids=ids, past_key_values=begun, use_cache=True).logits
        for each, begun in ((model, cache), (own, own_cache))
    )
    assert error(again, expected) <= TOLERANCE
    assert stays or error(again, forward(own, input_ids=ids).logits) <= TOLERANCE
    assert bool(plan_of(model).why_aside) == stays


def test_a_run_that_fails_begins_no_text(monkeypatch):
    (model, own), ids = pair(), ids_of(2, 9)
    program, cache = plan_of(model).program(), transformers.DynamicCache(config=model.config)

    def fails(*_):
        raise lz.KernelExecutionError("planted")

    monkeypatch.setattr(program, "program", type("Program", (), {"run": fails}))
    with pytest.raises(lz.KernelExecutionError, match="planted"):
        forward(model, input_ids=ids, past_key_values=cache, use_cache=True)
    assert not cache.has_previous_state()
    monkeypatch.undo()
    for each in (model, own):
        given = {"input_ids": ids, "past_key_values": copy.deepcopy(cache), "use_cache": True}
        assert error(forward(each, **given).logits, forward(own, input_ids=ids).logits) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_weights_that_change():
    """What the gates are made of is read where it lies."""
    (model, own), ids = pair(), ids_of()
    with torch.no_grad():
        for each in (model, own):
            part = each.model.layers[0].linear_attn
            for tensor in (part.A_log, part.dt_bias, part.conv1d.weight, part.norm.weight):
                tensor.mul_(0.5)
            part.dt_bias.data = part.dt_bias + 1
    assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_a_model_that_was_never_trained():
    """All of one vector are ones: which gate is which is told all the same."""
    model = build("qwen3_next")
    with torch.no_grad():
        for index in (0, 2):
            for tensor in (model.model.layers[index].linear_attn.A_log, model.model.layers[index].linear_attn.dt_bias):
                tensor.fill_(1)
    own, ids = copy.deepcopy(model), ids_of()
    assert "decoder" in lz.kernelize(model).replaced
    with torch.no_grad():
        for each in (model, own):
            each.model.layers[2].linear_attn.A_log.copy_(torch.linspace(-2, 1, 4))
    assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE


def test_weights_in_blocks():
    model, own = build("qwen3_next"), build("qwen3_next")
    plan = lz.compile(model, "int8", max_perplexity_ratio=2)
    operations = {row["operation"] for row in plan.phases["decode"]}
    assert plan.block == "block.decoder" and {"linear_gguf", "gated_delta_rule", "causal_conv1d"} <= operations
    assert not [row for row in plan.phases["decode"] if row["kernel_id"].startswith(("torch.", "ref."))]
    given = masked(ids_of(), "left")
    assert 1e-4 < error(forward(model, **given).logits, forward(own, **given).logits) < 0.2
    assert not plan_of(model).why_aside


# ---- what stays with the model's own code


def test_blocks_have_no_states():
    model, _ = pair()
    cache = lz.PagedCache(lz.KVCacheManager(num_blocks=16, block_size=4))
    with pytest.raises(ValueError, match="states"):
        forward(model, input_ids=ids_of(), past_key_values=cache, use_cache=True)


def test_a_cache_that_records_the_past():
    (model, own), ids = pair(), ids_of()
    results = []
    for each in (model, own):
        cache = transformers.DynamicCache(config=model.config)
        cache.activate_past_recording()
        results.append(forward(each, input_ids=ids, past_key_values=cache, use_cache=True).logits)
    assert error(*results) <= TOLERANCE
    assert plan_of(model).why_aside == {"the cache keeps other states, or those of the past too": 1}


def test_states_of_another_text():
    """Positions without their states: the model's own code decides what that means."""
    (model, own), ids, results = pair(), ids_of(), []
    for each in (model, own):
        cache = forward(own, input_ids=ids, use_cache=True).past_key_values
        with torch.inference_mode():
            cache.layers[0].reset()
            cache.layers[2].reset()
        results.append(forward(each, input_ids=ids, past_key_values=cache, use_cache=True).logits)
    assert error(*results) <= TOLERANCE
    assert plan_of(model).why_aside == {"the states in the cache are not those of the positions in it": 1}


def test_a_rule_of_another_kind():
    """Without the norm of queries and keys it is another one."""
    model = build("qwen3_next")
    modeling = __import__(type(model).__module__, fromlist=["torch_chunk_gated_delta_rule"])
    chunk = modeling.torch_chunk_gated_delta_rule

    def other(*args, **kwargs):
        return chunk(*args, **kwargs | {"use_qk_l2norm_in_kernel": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling, "torch_chunk_gated_delta_rule", other)
        left = lz.kernelize(model).left
    assert left["decoder"] == "layer 0: linear_attn.norm: mul: its state is updated in a way that was not recognised"


def test_long_keys_keep_their_direction():
    """Squares that leave float32: 1e20 in each of 16 numbers."""
    rows = torch.full((1, 1, 1, 16), 1e20)
    state = torch.zeros(1, 1, 16, 16)
    read = lz.gated_delta_rule(
        rows, rows, torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), state, l2_eps=1e-6
    )
    short = lz.gated_delta_rule(
        rows / 1e20,
        rows / 1e20,
        torch.ones(1, 1, 1, 16),
        torch.zeros(1, 1, 1),
        torch.ones(1, 1, 1),
        state * 0,
        l2_eps=1e-6,
    )
    torch.testing.assert_close(read, short)
