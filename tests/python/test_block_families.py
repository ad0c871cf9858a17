"""block.decoder and block.encoder of every family: the model's own result, through its caches and ways to generate."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import (  # noqa: E402
    BY_NAME,
    DECODERS,
    GREEDY,
    TOLERANCE,
    WINDOW,
    build,
    error,
    holder_of,
    ids_of,
    plan_of,
)
from layerzero.integrations.transformers.run import block  # noqa: E402
from layerzero.models.families import as_trained, first_output  # noqa: E402

ENCODERS = ["bert", "roberta", "distilbert", "modernbert", "vit", "clip", "siglip"]


@pytest.fixture(params=DECODERS)
def name(request):
    return request.param


def forward(model, **given):
    with torch.inference_mode():
        return model(**given)


def padded(ids):
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_is_one_program(name, dtype):
    model, exact = build(name, dtype), build(name)
    own, ids = copy.deepcopy(model), ids_of(8)
    given = padded(ids)
    plan = lz.compile(model)
    assert plan.block == "block.decoder" and set(plan.phases) == {"prefill", "decode"}
    rows = given["attention_mask"].bool()
    for arguments in ({"input_ids": ids}, given):
        visible = rows if "attention_mask" in arguments else torch.ones_like(rows)
        expected, actual, wanted = (forward(m, **arguments).logits[visible] for m in (own, model, exact))
        if dtype == torch.float32:
            assert error(actual, expected) <= TOLERANCE
        else:
            assert error(actual, wanted) <= 1.25 * error(expected, wanted)
    assert not plan_of(model).why_aside
    assert lz.unkernelize(model) and torch.equal(forward(model, **given).logits, forward(own, **given).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_stored_column_major_are_no_step_outside_of_cpp(dtype):
    plan = lz.compile(build("gpt2", dtype))
    kernels = {row["kernel_id"] for rows in plan.phases.values() for row in rows}
    assert "hwy.mlp.linear.column_major" in kernels
    assert not [kernel for kernel in kernels if kernel.startswith("torch.")]
    assert plan.report.replaced["Conv1D"]["count"] == 8 and not plan.report.left


@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_is_one_program(family):
    family = BY_NAME[family]
    model = family.build()
    plan = lz.compile(model)
    assert plan.block == "block.encoder" and plan.report.replaced["encoder"]["calls"] == 0
    for padding in (None, "right") if family.inputs == "tokens" else (None,):
        example = family.example(padding=padding)
        assert error(first_output(model, example), first_output(family.build(), example)) <= TOLERANCE
    assert plan.report.replaced["encoder"]["calls"] and not plan_of(model).why_aside


# ---- what the weights of the moment do not tell


def test_norms_that_are_alike():
    """Of a model that was never trained: which norm the MLP reads is told by the memory, and holds for other weights."""
    config = transformers.GPTNeoXConfig(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                        num_attention_heads=4)  # fmt: skip
    model = transformers.GPTNeoXForCausalLM(config).eval()
    own = copy.deepcopy(model)
    assert lz.compile(model).block == "block.decoder"
    with torch.no_grad():
        for each in (model, own):
            for layer in each.gpt_neox.layers:
                layer.input_layernorm.weight.copy_(torch.linspace(0.5, 2, 64))
                layer.post_attention_layernorm.bias.fill_(0.3)
    assert error(forward(model, input_ids=ids_of()).logits, forward(own, input_ids=ids_of()).logits) <= TOLERANCE


@pytest.mark.parametrize("path", ["attention.dense", "mlp.dense_4h_to_h", "attention.query_key_value"])
def test_weights_that_are_zeros(path):
    model = build("gpt_neox")
    own = copy.deepcopy(model)
    for each in (model, own):
        linear = each.gpt_neox.layers[1].get_submodule(path)
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    report = lz.kernelize(model)
    assert report.left["decoder"].startswith("layer 1: its weights are zeros")
    assert error(forward(model, input_ids=ids_of()).logits, forward(own, input_ids=ids_of()).logits) <= TOLERANCE


def test_a_part_too_small_to_be_seen():
    model = build("gpt_neox")
    with torch.no_grad():
        for parameter in model.gpt_neox.layers[0].attention.dense.parameters():
            parameter.mul_(1e-12)
    assert "its attention adds nothing" in lz.kernelize(model).left["decoder"]


def drafts(own, draft):
    """Transformers 5.17 by itself cannot draft with most models that have a window."""
    try:
        own.generate(ids_of(1), **GREEDY | {"assistant_model": draft})
    except RuntimeError:
        assert transformers.__version__.startswith("5.17."), "only there is this known"
        return False
    return True


def generates_alike(model, own, **options):
    ids = options.pop("ids", ids_of())
    with torch.inference_mode():
        assert torch.equal(model.generate(ids, **GREEDY | options), own.generate(ids, **GREEDY | options))


def test_generation(name):
    """Greedy, by beams, and with a draft that is wrong now and then, so that the cache is cut back."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    generates_alike(model, own)
    generates_alike(model, own, num_beams=3)
    draft = build(name)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(1.02)
    if drafts(own, draft):
        generates_alike(model, own, assistant_model=draft, ids=ids_of(1))
    assert not plan_of(model).why_aside


def test_a_static_cache(name):
    """Where a layer holds its window alone, the program stops there and the model's own code goes on."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    generates_alike(model, own, cache_implementation="static", ids=ids_of(2, 3))
    asides = set(plan_of(model).why_aside)
    assert asides <= {"the cache holds its window alone, and more positions were seen"}
    assert holder_calls(model) > 1


def holder_calls(model):
    return model.__dict__["_layerzero_kernelized"].report.replaced["decoder"]["calls"]


# ---- caches that go from hand to hand


@pytest.mark.parametrize("first", ["program", "own"])
@pytest.mark.parametrize("length", [WINDOW - 2, WINDOW + 3])
def test_a_cache_that_changes_hands(name, first, length):
    """A prompt by one, tokens by the other: a window that the model's own code has filled stays with it."""
    model, own, ids = build(name), build(name), ids_of(2, length + 4)
    lz.kernelize(model)
    expected = forward(own, input_ids=ids).logits
    cache = transformers.DynamicCache(config=model.config)
    order = (model, own) if first == "program" else (own, model)
    logits = [forward(order[0], input_ids=ids[:, :length], past_key_values=cache, use_cache=True).logits]
    for at in range(length, length + 4):
        one = ids[:, at : at + 1]
        logits.append(forward(order[at % 2], input_ids=one, past_key_values=cache, use_cache=True).logits)
    assert error(torch.cat(logits, dim=1), expected) <= TOLERANCE


@pytest.mark.parametrize("name", ["mistral", "gemma2", "cohere2", "gpt_neox"], indirect=True)
def test_a_long_text_in_pieces(name):
    """Far beyond the window, and beyond the room that a cache has at first."""
    model, own, ids, cache, logits = build(name), build(name), ids_of(2, 420), None, []
    lz.kernelize(model)
    mask = padded(ids)["attention_mask"]
    for begin, end in ((0, 290), (290, 291), (291, 300), (300, 301), (301, 420)):
        given = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end], "past_key_values": cache}
        result = forward(model, **given, use_cache=True)
        cache = result.past_key_values
        logits.append(result.logits)
    expected = forward(own, input_ids=ids, attention_mask=mask).logits
    assert error(torch.cat(logits, dim=1)[mask.bool()], expected[mask.bool()]) <= TOLERANCE
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("name", ["mistral", "gemma3", "mixtral"], indirect=True)
def test_a_mask_of_the_callers_own(name):
    """It alone says what a row sees; a window would hide some of that."""
    model, own, ids = build(name), build(name), ids_of(2, 12)
    lz.kernelize(model)
    both = torch.zeros(2, 1, 12, 12)  # also what comes later
    prefix = torch.full((2, 1, 12, 12), torch.finfo(torch.float32).min).triu(1)
    prefix[..., :5] = 0
    for mask in (both, prefix, both == 0):
        results = [forward(each, input_ids=ids, attention_mask=mask).logits for each in (model, own)]
        assert error(*results) <= TOLERANCE
    assert set(plan_of(model).why_aside) == {"the mask shows keys that are outside of the layers' window"}


@pytest.mark.parametrize("name", ["qwen2 mixed", "qwen3 mixed", "gemma3"], indirect=True)
def test_layers_with_a_window_and_without_a_mask(name):
    """Attention by `sdpa` knows a window by its mask alone: without one it sees all keys, as many as there are."""
    model, own, ids = build(name), build(name), ids_of(2, WINDOW + 4)
    report = lz.kernelize(model)
    masks = {"full_attention": None, "sliding_attention": None}
    for length in (WINDOW, WINDOW + 4):
        given = {"input_ids": ids[:, :length], "attention_mask": masks, "use_cache": False}
        assert error(forward(model, **given).logits, forward(own, **given).logits) <= TOLERANCE
    assert plan_of(model).why_aside == {"no mask is given, and the layers' window would hide keys": 1}
    assert report.replaced["decoder"]["calls"] == 1


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "mixtral", "phi"], indirect=True)
@pytest.mark.parametrize("kind", ["dynamic", "static", "masked", "two sequences", "without"])
def test_a_prompt_in_parts(name, kind, monkeypatch):
    """One sequence without padding goes through the program some rows at a time."""
    monkeypatch.setattr(block, "PIECE", 5)
    model, own, ids = build(name), build(name), ids_of(2 if kind == "two sequences" else 1, 23)
    lz.kernelize(model)
    given = {"input_ids": ids, "use_cache": kind != "without"}
    if kind == "masked":
        given["attention_mask"] = torch.full((1, 1, 23, 23), torch.finfo(torch.float32).min).triu(1)
        given["attention_mask"][..., :3] = 0  # a prefix that each row sees
    results = []
    for each in (model, own):
        further = (
            {"past_key_values": transformers.StaticCache(each.config, max_cache_len=40)} if kind == "static" else {}
        )
        first = forward(each, **given, **further)
        results.append(first.logits)
        if kind in ("dynamic", "static", "two sequences"):
            last = forward(each, input_ids=ids[:, :1], past_key_values=first.past_key_values)
            results[-1] = torch.cat([first.logits, last.logits], dim=1)
    assert error(*results) <= TOLERANCE


def test_a_copied_cache(name):
    model, own, ids = build(name), build(name), ids_of(2, WINDOW + 5)
    lz.kernelize(model)
    cache = forward(model, input_ids=ids[:, :-1], use_cache=True).past_key_values
    for other in (copy.deepcopy(cache), cache):
        logits = forward(model, input_ids=ids[:, -1:], past_key_values=other, use_cache=True).logits
        assert error(logits, forward(own, input_ids=ids).logits[:, -1:]) <= TOLERANCE
        assert {layer.get_seq_length() for layer in other.layers} == {WINDOW + 5}


# ---- weights in blocks


@pytest.mark.parametrize("name", ["phi3", "gemma2", "gpt_neox", "cohere", "opt"], indirect=True)
def test_weights_in_blocks(name):
    model, own = build(name), build(name)
    plan = lz.compile(model, "int8", max_perplexity_ratio=2)
    assert plan.block == "block.decoder" and plan.report.weights.layers
    operations = {row["operation"] for row in plan.phases["decode"]}
    assert "linear_gguf" in operations and "linear" not in operations
    given = padded(ids_of())
    logits = forward(model, **given).logits
    assert error(logits, forward(own, **given).logits) > 1e-3 and not plan_of(model).why_aside
    with torch.device("cpu"):  # a mode, under which no program runs: part by part, by the same blocks
        assert error(logits, forward(model, **given).logits) <= TOLERANCE
    assert len(plan_of(model).why_aside) == 1


def test_latents_keep_the_weight_that_makes_keys_and_values():
    model, own = build("deepseek_v3"), build("deepseek_v3")
    plan = lz.compile(model, "int8", max_perplexity_ratio=2, release_originals=True)
    operations = {row["operation"] for row in plan.phases["decode"]}
    assert plan.block == "block.decoder" and {"linear_gguf", "head_linear"} <= operations
    left = [name for name, reason in plan.report.left.items() if "latents" in reason]
    assert left == [f"model.layers.{index}.self_attn.kv_b_proj" for index in range(3)]
    given = padded(ids_of())
    assert 1e-4 < error(forward(model, **given).logits, forward(own, **given).logits) < 0.2
    assert not plan_of(model).why_aside


@pytest.mark.parametrize("where", ["static", "paged"])
def test_latents_and_rotated_keys_in_two_memories(where):
    """A static cache that the model's own code has begun, and blocks that somebody has attached."""
    model, own, ids = build("deepseek_v3"), build("deepseek_v3"), ids_of(2)
    if where == "static":
        cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    else:
        manager = lz.KVCacheManager(num_blocks=16, block_size=4)
        for _ in range(3):
            manager.attach(torch.zeros(16, 4, 1, 24), torch.zeros(16, 4, 1, 8))
        cache = lz.PagedCache(manager)
    first = forward(own, input_ids=ids[:, :6], past_key_values=cache, use_cache=True).logits
    lz.kernelize(model)
    rest = forward(model, input_ids=ids[:, 6:], past_key_values=cache, use_cache=True).logits
    assert error(torch.cat([first, rest], dim=1), forward(own, input_ids=ids).logits) <= TOLERANCE
    asides = {"its latents and rotated keys are in two allocations": 1} if where == "paged" else {}
    assert plan_of(model).why_aside == asides


def test_an_encoder_with_weights_in_bf16():
    """Its first products read what a run gives, before any norm."""
    config = transformers.BertConfig(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                     num_attention_heads=4)  # fmt: skip
    model = transformers.BertForMaskedLM(config).eval()
    expected = forward(model, input_ids=ids_of()).logits
    plan = lz.compile(model, "bf16", accuracy_ids=ids_of(1, 20))
    assert plan.block == "block.encoder" and plan.report.weights.layers
    assert 1e-4 < error(forward(model, input_ids=ids_of()).logits, expected) < 2e-2 and not plan_of(model).why_aside


@pytest.mark.parametrize("asks", ["argument", "configuration"])
def test_hidden_states_that_a_model_gathers_itself(asks):
    """Falcon does, and not through Transformers' hooks."""
    model = build("falcon")
    own, ids = copy.deepcopy(model), ids_of()
    lz.kernelize(model)
    given = {"input_ids": ids, "output_hidden_states": True} if asks == "argument" else {"input_ids": ids}
    for each in (model, own) if asks == "configuration" else ():
        each.config.output_hidden_states = True
    actual, expected = (forward(each, **given).hidden_states for each in (model, own))
    assert len(actual) == len(expected) == 4
    assert all(error(mine, theirs) <= TOLERANCE for mine, theirs in zip(actual, expected, strict=True))
    assert set(plan_of(model).why_aside) == {"attentions or hidden states are asked for"}


@pytest.mark.parametrize("gated", [False, True])
def test_layers_with_a_factor_for_each_column(gated):
    """DINOv2 multiplies what each part gives."""
    if gated and transformers.__version__.startswith("5.17."):
        pytest.skip("its gate goes through a function there, which is no part of the layer")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 28, "patch_size": 14}
    config = transformers.Dinov2Config(**sizes, use_swiglu_ffn=gated, initializer_range=0.3)
    torch.manual_seed(5)
    model = as_trained(transformers.Dinov2Model(config).eval())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda1" in name:
                parameter.normal_()
    own, pixels = copy.deepcopy(model), torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(3))
    report = lz.kernelize(model)
    assert error(*(forward(each, pixel_values=pixels)[0] for each in (model, own))) <= TOLERANCE
    with torch.no_grad():
        for each in (model, own):
            each.encoder.layer[1].layer_scale2.lambda1.mul_(-3)
    assert error(*(forward(each, pixel_values=pixels)[0] for each in (model, own))) <= TOLERANCE
    assert report.replaced["encoder"]["calls"] == 2


def test_layers_that_are_causal_without_a_cache():
    """The text half of CLIP says so to its layers at each call."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    torch.manual_seed(5)
    model = as_trained(
        transformers.CLIPTextModel(transformers.CLIPTextConfig(**sizes, vocab_size=131, eos_token_id=2)).eval()
    )
    own = copy.deepcopy(model)
    report = lz.kernelize(model)
    right = torch.ones(2, 11, dtype=torch.long)
    right[0, 7:] = 0
    for given in ({"input_ids": ids_of()}, {"input_ids": ids_of(), "attention_mask": right}):
        rows = right.bool() if "attention_mask" in given else torch.ones_like(right).bool()
        actual, expected = (forward(each, **given).last_hidden_state[rows] for each in (model, own))
        assert error(actual, expected) <= TOLERANCE
    assert report.replaced["encoder"]["calls"] == 2 and not plan_of(model).why_aside
    layers = holder_of(model).layers
    calls = [
        lambda each=each: forward(each, hidden_states=torch.ones(1, 5, 64), attention_mask=None) for each in layers
    ]
    assert [call().shape for call in calls] == [(1, 5, 64)] * 3
