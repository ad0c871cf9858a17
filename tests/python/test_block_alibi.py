"""Layers whose attention is code of their own, with a bias by distance: slopes where the numbers allow it, else a mask."""

import copy
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import TOLERANCE, error, plan_of  # noqa: E402
from layerzero.integrations.transformers.layers import Alibi  # noqa: E402
from layerzero.integrations.transformers.recognise import observe  # noqa: E402
from layerzero.integrations.transformers.recognise.patterns.scores import add_attends  # noqa: E402
from layerzero.integrations.transformers.recognise.trace import Recorder  # noqa: E402
from layerzero.integrations.transformers.run import linear_biases  # noqa: E402
from layerzero.models.families import as_trained  # noqa: E402
from layerzero.program import Program  # noqa: E402

_SIZES = {"vocab_size": 131, "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MODELS = {
    "bloom": ("Bloom", {"hidden_size": 96, "n_layer": 2, "n_head": 6}),  # more heads than a power of two
    "falcon": ("Falcon", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}),
    "mpt": ("Mpt", {"d_model": 96, "n_layers": 2, "n_heads": 6, "max_seq_len": 512}),  # says what a mask hides
}
LENGTH = 310  # beyond the integers that bf16 holds, in which Falcon makes its bias


def build(name, dtype=torch.float32):
    kind, arguments = MODELS[name]
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**arguments, **_SIZES)
    return as_trained(getattr(transformers, f"{kind}ForCausalLM")(config).eval()).to(dtype)


def forward(model, **given):
    with torch.inference_mode():
        return model(**given)


def ids_and_masks(length=LENGTH):
    ids = torch.randint(3, 131, (2, length), generator=torch.Generator().manual_seed(3))
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[0, :37] = 0
    right[1, -50:] = 0
    hole = left.clone()
    hole[1, 5:9] = 0
    return ids, {"none": None, "left": left, "right": right, "hole": hole}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "left", "right", "hole"])
def test_a_long_prompt(name, kind, dtype):
    model = build(name, dtype)
    own, exact = copy.deepcopy(model), copy.deepcopy(model).float()
    assert lz.compile(model).block == "block.decoder"
    ids, masks = ids_and_masks()
    seen = torch.ones_like(ids).bool() if masks[kind] is None else masks[kind].bool()
    results = [forward(each, input_ids=ids, attention_mask=masks[kind]).logits[seen] for each in (model, own, exact)]
    if dtype == torch.float32:
        assert error(*results[:2]) <= TOLERANCE
    else:
        assert error(results[0], results[2]) <= 1.25 * error(results[1], results[2])
    assert not plan_of(model).why_aside


def test_tokens_behind_a_padded_prompt(name):
    model, own = build(name), build(name)
    lz.kernelize(model)
    ids, masks = ids_and_masks()
    mask, cache = masks["left"], None
    logits = []
    for begin, end in ((0, LENGTH - 3), *((at, at + 1) for at in range(LENGTH - 3, LENGTH))):
        given = {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end], "past_key_values": cache}
        result = forward(model, **given, use_cache=True)
        cache = result.past_key_values
        logits.append(result.logits)
    expected = forward(own, input_ids=ids, attention_mask=mask).logits[mask.bool()]
    assert error(torch.cat(logits, dim=1)[mask.bool()], expected) <= TOLERANCE
    assert not plan_of(model).why_aside


def test_a_paged_cache(name):
    """Attention over blocks takes slopes; a bias that is a part of the mask goes with the model's own code."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    ids, masks = ids_and_masks(40)
    given = {"input_ids": ids, "attention_mask": masks["left"], "use_cache": True}
    cache = lz.PagedCache(lz.KVCacheManager(num_blocks=64, block_size=16))
    last = {"input_ids": ids[:, :1], "attention_mask": torch.nn.functional.pad(masks["left"], (0, 1), value=1)}
    results = [forward(each, **given, past_key_values=kept) for each, kept in ((model, cache), (own, None))]
    tokens = [
        forward(each, **last, past_key_values=first.past_key_values).logits
        for each, first in zip((model, own), results, strict=True)
    ]
    seen = masks["left"].bool()
    assert error(*(first.logits[seen] for first in results)) <= TOLERANCE and error(*tokens) <= TOLERANCE
    assert bool(plan_of(model).why_aside) == (name == "falcon")


def test_slopes_go_into_the_program(name, monkeypatch):
    """Not a mask for each head, where the bias is what slopes give."""
    model, ran, run = build(name), [], Program.run
    lz.kernelize(model)
    monkeypatch.setattr(Program, "run", lambda self, *args: (ran.append(args[0]), run(self, *args))[1])
    ids, _ = ids_and_masks(20)
    forward(model, input_ids=ids)
    (given,) = ran
    if name == "falcon":
        assert given[1].shape == (2, 4, 20, 20)  # it is a part of the mask already
    else:
        assert given[1] is None
        torch.testing.assert_close(given[4], lz.alibi_slopes(6))


def test_hidden_states_and_weights_that_are_asked_for(name):
    model, own = build(name), build(name)
    lz.kernelize(model)
    ids, _ = ids_and_masks(12)
    for asked in ("output_hidden_states", "output_attentions"):
        if name == "falcon" and asked == "output_attentions":
            continue  # not under the attention that it has at first
        results = [forward(each, input_ids=ids, **{asked: True}) for each in (model, own)]
        for mine, theirs in zip(*(result[asked.removeprefix("output_")] for result in results), strict=True):
            assert error(mine, theirs) <= TOLERANCE
    assert set(plan_of(model).why_aside) == {"attentions or hidden states are asked for"}


def test_queries_that_are_bounded():
    """MPT clamps them where its configuration says so, with keys and values beside them."""
    config = transformers.MptConfig(**MODELS["mpt"][1], **_SIZES, attn_config={"clip_qkv": 0.3})
    model = transformers.MptForCausalLM(config).eval()
    own, ids = copy.deepcopy(model), ids_and_masks(12)[0]
    assert lz.kernelize(model).replaced["decoder"]
    assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE
    model = build("mpt")
    lz.kernelize(model)
    model.transformer.blocks[1].attn.clip_qkv = 0.1
    own, ids = build("mpt"), ids_and_masks(12)[0]
    own.transformer.blocks[1].attn.clip_qkv = 0.1
    assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE
    assert set(plan_of(model).why_aside) == {"an attribute of a module was changed after kernelize"}


# ---- scores that a layer writes out


class Scores(torch.nn.Module):
    """Attention of rows to themselves, whose scores `between` makes of their product."""

    def __init__(self, between):
        super().__init__()
        self.between = between
        self.register_buffer("triangle", torch.ones(1, 1, 9, 9, dtype=torch.bool).tril())

    def forward(self, rows, attention_mask=None, bias=None):
        heads = rows.view(2, 5, 4, 8).transpose(1, 2)
        scores = self.between(self, heads @ heads.transpose(-1, -2), attention_mask, bias)
        return (torch.softmax(scores, dim=-1) @ heads).transpose(1, 2).reshape(2, 5, 32)


LEAST = torch.finfo(torch.float32).min
SHOWN = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
ADDED = torch.where(SHOWN, 0.0, LEAST).expand(2, 1, 5, 5)


def attends(between, mask=ADDED, bias=None):
    """The further arguments of the attention in such a layer, None where there is none."""
    layer, rows = Scores(between), torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), Recorder([layer]) as recorder:
        layer(rows, attention_mask=mask, **({} if bias is None else {"bias": bias}))
    (graph,) = recorder.graphs
    add_attends(graph)
    return next((node.kwargs for node in graph.nodes if node.op == "attend"), None)


def alibi(factor=1.0, shift=0.0):
    return factor * lz.alibi_slopes(4)[:, None, None] * (torch.arange(5.0) + shift)


KNOWN = {
    "a factor": (lambda s, x, mask, bias: x * 0.3 + mask, 0.3),
    "a factor on the left": (lambda s, x, mask, bias: mask + 0.3 * x, 0.3),
    "divided after the mask": (lambda s, x, mask, bias: (x + mask) / 4, 0.25),
    "a bound below all": (lambda s, x, mask, bias: (x * 0.3 + mask).clamp(min=LEAST), 0.3),
    "a triangle of its own": (lambda s, x, mask, bias: torch.where(s.triangle[..., :5, :5], x, LEAST) + mask, 1.0),
}


@pytest.mark.parametrize("spelling", KNOWN)
def test_what_is_between_a_product_and_a_softmax(spelling):
    between, scale = KNOWN[spelling]
    found = attends(between)
    assert (
        found["scaling"] == pytest.approx(scale) and found["alibi"] is None and found["mask"].name == "attention_mask"
    )


OTHERS = {
    "a bound": lambda s, x, mask, bias: (x + mask).clamp(min=-1e4),
    "a sum": lambda s, x, mask, bias: x + 1 + mask,
    "a function": lambda s, x, mask, bias: torch.tanh(x) + mask,
    "no mask": lambda s, x, mask, bias: x,
    "a window of its own": lambda s, x, mask, bias: torch.where(s.triangle.triu(-6)[..., :5, :5], x, LEAST) + mask,
    "a part of the mask": lambda s, x, mask, bias: x + mask[:, :, -1:],
    "a mask that is turned": lambda s, x, mask, bias: x - mask,
}


@pytest.mark.parametrize("spelling", OTHERS)
def test_scores_of_another_kind(spelling):
    assert attends(OTHERS[spelling]) is None


@pytest.mark.parametrize("kinds", [("global", "global"), ("global", "local")])
def test_a_window_that_one_layer_has_in_a_buffer(kinds):
    """No text as short as the one that is recorded shows it: the buffer does."""
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64, "window_size": 32}
    config = transformers.GPTNeoConfig(**sizes, **_SIZES, attention_types=[[[*kinds], 1]])
    model = as_trained(transformers.GPTNeoForCausalLM(config).eval())
    own, report = copy.deepcopy(model), lz.kernelize(model)
    assert ("decoder" in report.replaced) == (kinds == ("global", "global"))
    ids, masks = ids_and_masks(50)
    seen = masks["left"].bool()
    results = [forward(each, input_ids=ids, attention_mask=masks["left"]).logits[seen] for each in (model, own)]
    assert error(*results) <= TOLERANCE


@pytest.mark.parametrize(
    ("bias", "slopes"),
    [
        (alibi(), lz.alibi_slopes(4)),
        (alibi(shift=-4.0), lz.alibi_slopes(4)),
        (alibi(3.0), 3 * lz.alibi_slopes(4)),
        (alibi() ** 2, None),
    ],
)
@pytest.mark.parametrize("inverted", [False, True])
def test_slopes_are_told_by_the_bias(bias, slopes, inverted):
    def between(_, x, mask, bias):
        return (x * 0.3 + bias).masked_fill(mask, LEAST) if inverted else x * 0.3 + bias + mask

    found = attends(between, ~SHOWN.expand(2, 1, 5, 5) if inverted else ADDED, bias)["alibi"]
    assert found.argument == "bias" and found.inverted == inverted
    if slopes is None:
        assert found.slopes is None
    else:
        torch.testing.assert_close(torch.tensor(found.slopes), slopes)
    assert attends(lambda s, x, mask, bias: x + bias * 2 + mask, bias=bias) is None
    assert attends(lambda s, x, mask, bias: (x + bias) * 2 + mask, bias=bias) is None
    assert attends(lambda s, x, mask, bias: x + bias.flip(0) + mask, bias=bias) is None


def test_a_mask_with_numbers_between_is_no_mask():
    mask = torch.zeros(2, 1, 5, 5)
    mask[..., 0] = -3
    assert attends(KNOWN["a factor"][0], mask) is None
    assert linear_biases.simplified(mask, False, 0) is mask


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_bias_of_other_slopes_becomes_a_part_of_the_mask(factor):
    own, slopes = Alibi("bias", None, False), lz.alibi_slopes(4)
    mask, given = linear_biases.applied(own, slopes, 4, None, alibi(factor), 2, 3)
    if factor == 1.0:
        assert mask is None and given is slopes
    else:
        assert given is None and mask.shape == (1, 4, 3, 5) and mask[0, :, 2].equal(alibi(factor)[:, 0])
        assert mask[..., 0, 3:].isneginf().all()
    assert linear_biases.applied(own, slopes, 4, None, alibi()[..., :4], 2, 3) is None


# ---- tensors that layers are given and do not read


def falcon_that_reads(when):
    """Whose last layer reads its bias by distance, which the mask holds already: its rows become larger by `when` of it."""
    model = build("falcon")
    layer = model.transformer.h[1]

    class Reads(type(layer)):
        def forward(self, hidden_states, alibi, *args, **kwargs):
            rows, *others = super().forward(hidden_states, alibi, *args, **kwargs)
            return (rows * (1 + when(alibi)), *others)

    layer.__class__ = Reads
    return model


def test_a_tensor_that_is_read_where_it_is_large():
    """No small input shows it by its numbers: the graph does."""
    model, own = (falcon_that_reads(lambda alibi: (alibi.abs() - 40).relu().amax()) for _ in range(2))
    assert lz.kernelize(model).left["decoder"].startswith("layer 1: mul: is added to the stream")
    for length in (12, LENGTH):
        ids = ids_and_masks(length)[0]
        assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE


def test_a_tensor_of_another_kind(monkeypatch):
    file, integers = sys.modules[transformers.FalconModel.__module__], []
    made = file.build_alibi_tensor
    monkeypatch.setattr(file, "build_alibi_tensor", lambda *a, **k: made(*a, **k).long() if integers else made(*a, **k))
    model, own = (falcon_that_reads(lambda alibi: not alibi.is_floating_point()) for _ in range(2))
    lz.kernelize(model)
    assert "alibi" in {unread.argument for unread in plan_of(model).stack.unread}
    ids = ids_and_masks(12)[0]
    for _ in range(2):
        assert error(*(forward(each, input_ids=ids).logits for each in (model, own))) <= TOLERANCE
        assert bool(plan_of(model).why_aside) == bool(integers)
        integers.append(True)
    assert set(plan_of(model).why_aside) == {"a tensor that its layers do not read is of another kind"}


def test_other_numbers_are_others():
    """A trial with the same numbers again would show nothing."""
    for tensor in (
        torch.zeros(2, 6).long(),
        torch.tensor(5),
        torch.tensor([3, 4, 3]),
        torch.ones(4).bool(),
        torch.ones(3),
    ):
        other = observe._other_numbers(tensor)
        assert (other.shape, other.dtype) == (tensor.shape, tensor.dtype) and not torch.equal(other, tensor)
