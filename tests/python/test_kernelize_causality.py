"""What a row sees is what the model's own attention lets it see: its mask and its implementation decide, never `is_causal` alone."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import compare_models  # noqa: E402
import layerzero as lz  # noqa: E402
import small_classes  # noqa: E402
from layerzero.integrations.transformers import probe  # noqa: E402
from layerzero.integrations.transformers.run import attention as attention_interface  # noqa: E402
from torch import nn  # noqa: E402
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

WIDTH, HEADS = 32, 4


class Attention(nn.Module):
    """Of a user: by Transformers' interface, with an `is_causal` that need not say what the masks do."""

    def __init__(self, config, is_causal):
        super().__init__()
        self.config, self.layer_idx = config, 0
        if is_causal != "absent":
            self.is_causal = is_causal
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, rows, mask=None):
        heads = [each(rows).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)]
        interface = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        out, _ = interface(self, *heads, mask, scaling=0.5)
        return self.o(out.flatten(-2))


def eager_attention_forward(module, query, key, value, attention_mask, scaling, **kwargs):
    scores = query @ key.transpose(-1, -2) * scaling
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


class Layer(nn.Module):
    def __init__(self, config, is_causal):
        super().__init__()
        self.attention = Attention(config, is_causal)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.up, self.act, self.down = nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)

    def forward(self, rows, attention_mask=None):
        rows = rows + self.attention(self.norms[0](rows), attention_mask)
        return rows + self.down(self.act(self.up(self.norms[1](rows))))


class OwnModel(transformers.PreTrainedModel):
    """masks: "none", whatever is hidden; "causal", always made; "padding", made where there is some."""

    config_class = transformers.BertConfig
    _supports_sdpa = True
    main_input_name = "input_ids"

    def __init__(self, config, is_causal, masks):
        super().__init__(config)
        self.embed = nn.Embedding(100, WIDTH)
        self.blocks = nn.ModuleList([Layer(config, is_causal), Layer(config, is_causal)])
        self.masks = masks
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def _mask(self, rows, given):
        length = rows.shape[1]
        shown = torch.ones(1, 1, length, length, dtype=torch.bool)
        if self.masks == "causal":
            shown = shown.tril()
        elif self.masks == "none" or given is None or given.all():
            return None
        if given is not None:
            shown = shown & given.bool()[:, None, None]
        return torch.where(shown, 0.0, torch.finfo(rows.dtype).min).to(rows.dtype)

    def forward(self, input_ids, attention_mask=None):
        rows = self.embed(input_ids)
        mask = self._mask(rows, attention_mask)
        for block in self.blocks:
            rows = block(rows, attention_mask=mask)
        return (rows,)


def own(is_causal, masks, implementation, dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=100, hidden_size=WIDTH)
    config._attn_implementation = implementation
    model = OwnModel(config, is_causal, masks).eval()
    return small_classes.randomise(model).to(dtype)


def assert_unchanged(model, given):
    """Every call gives what it gave; one that the model itself refuses says nothing."""
    original = copy.deepcopy(model)
    report = lz.kernelize(model)
    outcome = compare_models.held_against(original, model, given)
    assert not outcome.wrong, (outcome.wrong, report)
    return report, original, outcome


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("masks", ["none", "causal", "padding"])
@pytest.mark.parametrize("is_causal", [True, False, None, "absent"])
def test_models_of_a_user(is_causal, masks, implementation):
    model = own(is_causal, masks, implementation)
    report, original, outcome = assert_unchanged(model, {"input_ids": small_classes.ids()})
    refused = is_causal is None and masks != "causal" and implementation == "sdpa"  # by SDPA, where no mask is given
    assert refused or outcome.errors.keys() >= {"plain", "changed", "ones", "left padding", "gradients"}
    assert refused or "attention" in report.replaced, report
    if refused:
        return
    given = {"input_ids": small_classes.ids(), "attention_mask": torch.ones(2, small_classes.LENGTH)}
    given["attention_mask"][0, 5:9] = 0  # padding that is on neither side
    with torch.no_grad():
        assert compare_models.compare(model(**given), original(**given))[1] is None


@pytest.mark.parametrize("masks", ["none", "causal"])
@pytest.mark.parametrize("is_causal", [True, False])
def test_rows_before_a_changed_token_in_16_bits(is_causal, masks):
    model = own(is_causal, masks, "eager", torch.bfloat16)
    lz.kernelize(model)
    ids = small_classes.ids()
    with torch.no_grad():
        before, after = (model(each)[0] for each in (ids, torch.cat([ids[:, :-1], ids[:, :1]], 1)))
    moved = not torch.equal(before[:, :-1], after[:, :-1])
    assert moved == (masks == "none")


class Plain(nn.Module):
    """A model that is none of Transformers."""

    def __init__(self, is_causal):
        super().__init__()
        config = transformers.BertConfig(vocab_size=100, hidden_size=WIDTH)
        config._attn_implementation = "sdpa"
        self.layers = nn.ModuleList([Layer(config, is_causal)])

    def forward(self, rows, mask=None):
        return self.layers[0](rows, attention_mask=mask)


@pytest.mark.parametrize("is_causal", [True, False])
def test_plain_models(is_causal):
    model = small_classes.randomise(Plain(is_causal)).eval()
    original = copy.deepcopy(model)
    lz.kernelize(model)
    rows = torch.randn(2, 9, WIDTH)
    triangle = torch.where(torch.ones(9, 9).tril().bool(), 0.0, float("-inf"))[None, None]
    for mask in (None, torch.zeros(1, 1, 9, 9), triangle):
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                assert compare_models.compare(model(rows, mask), original(rows, mask))[1] is None


# Eager attention whose modules have no is_causal that says what the mask does; outputs that a caller may ask for.
CLASSES = ["SplinterModel", "BigBirdPegasusForCausalLM", "AlignTextModel", "ClapTextModel", "Aimv2TextModel", "CLIPTextModel",
           "CsmDepthDecoderForCausalLM", "ColPaliForRetrieval", "UMT5ForConditionalGeneration", "LongT5ForConditionalGeneration",
           # eager attention under another name; a first output of several tensors
           "Phi4MultimodalVisionModel", "DINOv3ConvNextBackbone"]  # fmt: skip


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_transformers(name, implementation):
    kind = getattr(transformers, name)
    if implementation == "sdpa" and not kind._supports_sdpa:
        pytest.skip("it has no sdpa")
    model, given, _ = small_classes.build(kind, implementation)
    *_, outcome = assert_unchanged(model, given)
    assert len(outcome.errors) > 5


# ---- controls: the comparison finds a model that is made wrong


def _causality_of_modules(monkeypatch):
    """As it was: a module's is_causal decides where a mask is plainly causal or absent."""
    real = attention_interface.layerzero_attention

    def attend(module, query, key, value, mask, is_causal=None, **further):
        return real(module, query, key, value, mask, is_causal=getattr(module, "is_causal", True), **further)

    monkeypatch.setattr(attention_interface, "layerzero_attention", attend)


def _drops(argument):
    def plant(monkeypatch):
        real = attention_interface.layerzero_attention
        monkeypatch.setattr(
            attention_interface,
            "layerzero_attention",
            lambda *given, **further: real(*given, **further | {argument: None}),
        )

    return plant


def _no_mask(monkeypatch):
    real = attention_interface.layerzero_attention
    monkeypatch.setattr(
        attention_interface,
        "layerzero_attention",
        lambda module, query, key, value, mask, **further: real(module, query, key, value, None, **further),
    )


@pytest.mark.parametrize(
    "plant, name, implementation",
    [
        (_causality_of_modules, "SplinterModel", "eager"),
        (_causality_of_modules, "CLIPTextModel", "eager"),
        (_no_mask, "BertModel", "sdpa"),
        (_no_mask, "LlamaModel", "sdpa"),
        (_drops("position_bias"), "T5Model", "sdpa"),
        (_drops("scaling"), "T5Model", "sdpa"),
        (_drops("softcap"), "Gemma2Model", "eager"),
    ],
)
def test_the_comparison_finds_planted_faults(plant, name, implementation, monkeypatch):
    model, given, _ = small_classes.build(getattr(transformers, name), implementation)
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 2.0  # that of Gemma 2 changes small scores by less than rounding may
    original = copy.deepcopy(model)
    plant(monkeypatch)
    attention_interface.register()
    try:
        attention_interface.choose(model)
        assert compare_models.held_against(original, model, given).wrong
    finally:
        monkeypatch.undo()
        attention_interface.register()
    assert not compare_models.held_against(original, copy.deepcopy(original), given).wrong


def test_kernelize_refuses_a_planted_fault(monkeypatch):
    """Of a user's model: the proof of `kernelize` itself sees later tokens that the model's own attention does not, in 16 bits too."""
    for dtype in (torch.float32, torch.bfloat16):
        model = own(True, "none", "eager", dtype)
        with monkeypatch.context() as planted:
            _causality_of_modules(planted)
            report = lz.kernelize(model)
        assert "attention" not in report.replaced and "another result" in report.left["attention"]
        lz.unkernelize(model)
        assert "attention" in lz.kernelize(model).replaced


# ---- which rows move with the last token

MOVES = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}


def moved_pair(dtype, *moves):
    """Rows of size 1, before and after each moved so far."""
    rows = torch.nn.functional.normalize(
        torch.randn(1, len(moves), 64, generator=torch.Generator().manual_seed(3)), dim=-1
    )
    direction = rows.roll(1, -1)
    return rows.to(dtype), (rows.to(dtype).float() + direction * torch.tensor(moves)[None, :, None]).to(dtype)


@pytest.mark.parametrize("dtype", MOVES, ids=str)
def test_how_far_a_row_moves_is_known_within_rounding(dtype):
    """A deep model in 16 bits moves its last row by what the token does and by rounding, which may be much more."""
    rounding = MOVES[dtype]
    assert probe.move_alike(moved_pair(dtype, 0.0, 0.0, 2 * rounding), moved_pair(dtype, 0.0, 0.0, rounding / 4))
    assert probe.move_alike(moved_pair(dtype, 0.0, 0.0, rounding / 4), moved_pair(dtype, 0.0, 0.0, 2 * rounding))


@pytest.mark.parametrize("dtype", MOVES, ids=str)
@pytest.mark.parametrize("sees", ["the copy", "the original"])
def test_a_row_that_sees_a_later_token_alone_is_found(dtype, sees):
    causal, leaking = moved_pair(dtype, 0.0, 0.0, 0.5), moved_pair(dtype, 0.0, 0.3 * MOVES[dtype], 0.5)
    assert probe.move_alike(causal, causal) and probe.move_alike(leaking, leaking)
    assert not probe.move_alike(*((leaking, causal) if sees == "the copy" else (causal, leaking)))


# ---- what fused kernels do not take as it is


def test_keys_and_values_may_have_different_numbers_of_heads():
    """As torch's function takes them: Nemotron 3's diarization has values for each head of the queries."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(2, heads, 6, 8, generator=generator) for heads in (8, 2, 4))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    module = nn.Identity()
    out, _ = attention_interface.layerzero_attention(module, query, key, value, None, is_causal=False)
    assert compare_models.distance(out.transpose(1, 2), expected) < 1e-5


def test_weights_that_a_module_asks_for_by_an_argument():
    """As PatchTST does, without the hooks that keep weights for other models."""
    model, given, _ = small_classes.build(transformers.PatchTSTModel, "eager")
    own = copy.deepcopy(model)
    assert "attention" in lz.kernelize(model).replaced
    with torch.inference_mode():
        expected, actual = (each(**given, output_attentions=True).attentions for each in (own, model))
    assert len(actual) == len(expected) > 0
    assert all(compare_models.distance(a, b) < 1e-5 for a, b in zip(actual, expected, strict=True))


def test_gradients_of_eager_attention_with_large_scores_are_its_own():
    """MobileBERT's rows have numbers of 1e5: a fused backward that makes weights again from a sum is far away."""
    model, _, _ = small_classes.build(transformers.BertModel, "eager")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(3e3)
    own = copy.deepcopy(model)
    report = lz.kernelize(model)
    assert "attention" in report.replaced
    ids = small_classes.ids()
    for each in (own, model):
        each(ids).last_hidden_state[:, 0].sum().backward()
    gradients = dict(own.named_parameters())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, gradients[name].grad), name
