"""diffusers through LayerZero: the backend, the processors, `kernelize` of models and pipelines, undo, and what is left alone."""

import copy
import importlib
import importlib.util
import pickle
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import diffusion_models  # noqa: E402
import layerzero as lz  # noqa: E402

FOLDER = Path(sys.prefix) / "diffusers"  # scripts/setup.sh puts requirements/diffusers.txt there


@pytest.fixture(scope="module", autouse=True)
def diffusers():
    """The library, from a folder of its own: with Pillow, which it needs, Transformers imports other things."""
    added = FOLDER.is_dir()
    if added:
        sys.path.append(str(FOLDER))
    try:
        yield pytest.importorskip("diffusers", reason="needs requirements/diffusers.txt in .venv/diffusers: make setup")
    finally:
        if added:
            sys.path.remove(str(FOLDER))


def error(actual, expected):
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


def state_of(model):
    """All that `kernelize` may change: members of modules and of processors, and the processors' classes."""
    found = []
    for module in model.modules():
        found.append((module, {name: id(value) for name, value in module.__dict__.items()}))
        processor = getattr(module, "processor", None)
        if processor is not None:
            found.append((processor, type(processor), dict(processor.__dict__)))
    return found


REPLACED = {
    "flux": {"SiLU", "GELU", "LayerNorm", "RMSNorm", "AdaLayerNormZero", "AdaLayerNormContinuous", "attention", "RoPE"},
    "sd3": {"SiLU", "GELU", "LayerNorm", "RMSNorm", "AdaLayerNormZero", "AdaLayerNormContinuous", "attention"},
    "dit": {"SiLU", "GELU", "LayerNorm", "AdaLayerNormZero", "attention"},
    "unet": {"SiLU", "GEGLU", "LayerNorm", "attention"},
    "vae": {"SiLU", "attention"},
}


def test_every_public_name_is_there(diffusers):
    from layerzero.integrations import diffusers as ours

    assert all(getattr(ours, name) is not None for name in ours.__all__)
    for name in ours.__all__:  # none is hidden by a file of its name, whichever is imported first
        assert importlib.util.find_spec(f"{ours.__name__}.{name}") is None, name


@pytest.mark.parametrize("name", diffusion_models.NAMES)
def test_a_model_computes_the_same_and_is_undone(name):
    model, given = diffusion_models.build(name)
    before, expected = state_of(model), diffusion_models.run(model, given)
    keys = list(model.state_dict())
    report = lz.kernelize(model)
    assert set(report.replaced) == REPLACED[name]
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    assert all(entry["calls"] > 0 for entry in report.replaced.values()), str(report)
    assert lz.kernelize(model) is report and list(model.state_dict()) == keys
    if name in ("unet", "vae"):
        assert "groups of channels" in report.left["GroupNorm"] and "convolution" in report.left["Conv2d"]
    assert lz.unkernelize(model) and not lz.unkernelize(model)
    assert state_of(model) == before
    assert torch.equal(diffusion_models.run(model, given), expected)


def test_bfloat16_and_larger_batches():
    model, given = diffusion_models.build("dit")
    many = {name: torch.cat([value] * 3) for name, value in given.items()}
    expected = diffusion_models.run(model, many)
    lz.kernelize(model)
    assert error(diffusion_models.run(model, many), expected) < 1e-5  # modulated by torch: a call for each is slower
    lz.unkernelize(model)
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in given.items()}
    exact = diffusion_models.run(model, given)
    own = error(diffusion_models.run(model.bfloat16(), half), exact)
    report = lz.kernelize(model)
    assert report.replaced["AdaLayerNormZero"]["count"] == 2
    assert error(diffusion_models.run(model, half), exact) < 1.5 * own + 1e-3


def test_gradients_copies_and_pickles():
    model, given = diffusion_models.build("flux")
    expected = diffusion_models.run(model, given)
    lz.kernelize(model)
    model(**given, return_dict=False)[0].sum().backward()
    assert model.x_embedder.weight.grad is not None
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert error(diffusion_models.run(copied, given), expected) < 1e-5
    assert lz.unkernelize(model)


# ---- the backend


def test_the_backend_by_name(diffusers):
    from diffusers.models import attention_dispatch
    from layerzero.integrations.diffusers import register_backend

    assert register_backend() is register_backend()
    registry = attention_dispatch._AttentionBackendRegistry
    active = registry._active_backend
    model, given = diffusion_models.build("flux")
    expected = diffusion_models.run(model, given)
    try:
        model.set_attention_backend("layerzero")
        assert {p._attention_backend.value for p in model.attn_processors.values()} == {"layerzero"}
        assert error(diffusion_models.run(model, given), expected) < 1e-5
        model.reset_attention_backend()
    finally:
        registry.set_active_backend(active)
    calls = []
    own = registry._backends[attention_dispatch.AttentionBackendName("layerzero")]
    registry._backends["layerzero"] = lambda **given: calls.append(1) or own(**given)
    try:
        with attention_dispatch.attention_backend("layerzero"):
            assert error(diffusion_models.run(model, given), expected) < 1e-5
    finally:
        registry._backends["layerzero"] = own
    assert len(calls) == 2 and registry._active_backend == active


def _mask(kind):
    shape = {"keys": (2, 9), "rows": (7, 9), "batch": (2, 7, 9), "heads": (2, 4, 7, 9), "one": (2, 1, 1, 9)}[kind]
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[..., 0] = True
    return mask


@pytest.mark.parametrize("kind", ["keys", "rows", "heads", "one", None])
@pytest.mark.parametrize("added", [False, True])
def test_the_backend_computes_what_diffusers_own_does(kind, added):
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    from layerzero.integrations.diffusers import register_backend

    query, key, value = (torch.randn(2, length, 4, 16) for length in (7, 9, 9))
    mask = None if kind is None else _mask(kind)
    if mask is not None and added:
        mask = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    further = {"is_causal": added} if mask is None else {"attn_mask": mask}
    outs = [
        dispatch_attention_fn(query, key, value, scale=0.3, backend=backend, **further)
        for backend in (register_backend(), "native")
    ]
    assert error(*outs) < 1e-5


def test_the_backend_groups_heads_and_gives_logarithms():
    from layerzero.integrations.diffusers.backend import layerzero_attention

    query, key, value = torch.randn(2, 7, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    out, lse = layerzero_attention(query, key, value, enable_gqa=True, return_lse=True, attn_mask=_mask("batch"))
    heads = [rows.transpose(1, 2).repeat_interleave(4 // rows.shape[2], 1) for rows in (query, key, value)]
    scores = (heads[0] @ heads[1].mT / 4).masked_fill(~_mask("batch")[:, None], float("-inf"))
    assert error(out.transpose(1, 2), scores.softmax(-1) @ heads[2]) < 1e-5
    assert error(lse.transpose(1, 2), scores.logsumexp(-1)) < 1e-5
    with pytest.raises(NotImplementedError, match="context parallelism"):
        layerzero_attention(query, key, value, _parallel_config=object())


# ---- processors


@pytest.mark.parametrize("name", ["Attn", "AttnAddedKV", "JointAttn"])
def test_processors_of_old_pipelines(name, diffusers):
    from diffusers.models import attention_processor
    from layerzero.integrations import diffusers as integration

    options = {
        "Attn": {"norm_num_groups": 8, "residual_connection": True, "rescale_output_factor": 2.0, "bias": True},
        "AttnAddedKV": {
            "norm_num_groups": 8,
            "added_kv_proj_dim": 24,
            "cross_attention_dim": 24,
            "residual_connection": True,
        },
        "JointAttn": {"added_kv_proj_dim": 24, "context_pre_only": False, "qk_norm": "rms_norm"},
    }[name]
    if name == "AttnAddedKV":
        options |= {"only_cross_attention": True}
    attention = attention_processor.Attention(32, heads=4, dim_head=8, **options).eval()
    own = getattr(attention_processor, f"{name}Processor2_0")
    picture, text = torch.randn(2, 32, 4, 4), torch.randn(2, 5, 24)
    given = {"Attn": (picture,), "AttnAddedKV": (picture, text), "JointAttn": (torch.randn(2, 16, 32), text)}[name]
    with torch.no_grad():
        attention.set_processor(own())
        expected = attention(*given)
        processor = getattr(integration, f"LayerZero{name}Processor")()
        assert isinstance(processor, own)
        attention.set_processor(processor)
        actual = attention(*given)
    pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
    assert all(error(*pair) < 1e-5 for pair in pairs)


def test_the_first_processors_are_served_by_the_later_code():
    from diffusers.models.attention_processor import AttnProcessor

    model, given = diffusion_models.build("unet")
    model.set_attn_processor(AttnProcessor())  # one for all
    expected, before = diffusion_models.run(model, given), state_of(model)
    assert lz.kernelize(model).replaced["attention"]["count"] == 8
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    lz.unkernelize(model)
    assert state_of(model) == before


# ---- what is left alone


def test_reasons_for_what_is_left(diffusers):
    from diffusers.models import attention_processor, normalization

    class Other(attention_processor.AttnProcessor2_0):
        def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, temb=None):
            return attn.to_out[0](attn.to_v(hidden_states))

    model, _ = diffusion_models.build("dit")
    first, second = model.transformer_blocks
    first.attn1.set_processor(Other())
    second.attn1.set_processor(attention_processor.SlicedAttnProcessor(1))
    first.ff.net[0].register_forward_hook(lambda *_: None)
    first.norm1.norm = torch.nn.InstanceNorm1d(32)
    second.ff.net[0].forward = lambda rows: rows
    report = lz.kernelize(model)
    left = {name.removeprefix("transformer_blocks."): reason for name, reason in report.left.items()}
    assert left["0.attn1: attention"].startswith("Other: its code calls neither")
    assert "Sliced" in left["1.attn1: attention"] and "chosen" in left["1.attn1: attention"]
    assert left["0.ff.net.0"] == "has forward or backward hooks" and "replaced by something else" in left["1.ff.net.0"]
    assert left["0.norm1"].startswith("its norm is none of those")
    assert "attention" not in report.replaced
    lz.unkernelize(model)

    flux, _ = diffusion_models.build("flux")
    flux.transformer_blocks[0].attn.processor._attention_backend = "_native_math"
    report = lz.kernelize(flux)
    assert "_native_math" in report.left["transformer_blocks.0.attn: attention"]
    assert report.replaced["attention"]["count"] == 1
    lz.unkernelize(flux)
    assert flux.transformer_blocks[0].attn.processor._attention_backend == "_native_math"

    class Norm(normalization.RMSNorm):
        pass

    odd = torch.nn.ModuleDict({"own": Norm(8, 1e-6), "silu": torch.nn.SiLU(inplace=True), "mish": torch.nn.Mish()})
    from layerzero.integrations.diffusers import kernelize

    report = kernelize(odd)
    assert not report.replaced and report.left["silu"] == "writes into its input" and "Mish" in report.left["Mish"]


def test_on_a_cuda_device_activations_of_one_launch_stay_torchs(monkeypatch):
    implementation = importlib.import_module("layerzero.integrations.diffusers.kernelizing")
    monkeypatch.setattr(implementation, "_device_of", lambda model: "cuda")
    model, given = diffusion_models.build("unet")
    expected = diffusion_models.run(model, given)
    report = lz.kernelize(model)
    assert set(report.replaced) == REPLACED["unet"] - {"SiLU"} and "torch's own function" in report.left["SiLU"]
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    lz.unkernelize(model)


@pytest.fixture
def launch_bound(monkeypatch, diffusers):
    """Calls are taken for launches on a device, whose kernels are those of `kernels` by operation; yields what was asked."""
    choices = importlib.import_module("layerzero.integrations.diffusers.choices")
    asked, kernels = [], {"attention": "torch.sdpa.auto", "rms_norm": "torch.rms_norm"}

    def kernel_of(operation, tensors, given):
        lz.explain(operation, *tensors, **given)  # the arguments are those of a call
        asked.append(operation)
        return kernels[operation]

    monkeypatch.setattr(choices, "is_launch_bound", lambda rows: True)
    monkeypatch.setattr(choices, "_kernel_of", kernel_of)
    monkeypatch.setattr(choices, "_known", {})
    yield asked, kernels


@pytest.mark.parametrize("name", diffusion_models.NAMES)
def test_what_torchs_own_function_would_answer_is_called_without_the_operation(name, launch_bound, monkeypatch):
    asked, kernels = launch_bound
    backend = importlib.import_module("layerzero.integrations.diffusers.backend")
    parts = importlib.import_module("layerzero.integrations.diffusers.parts")
    model, given = diffusion_models.build(name)
    expected = diffusion_models.run(model, given)
    report = lz.kernelize(model)
    calls = []
    for module, function in ((backend, "_attention"), (parts, "_rms_norm")):
        own = getattr(module, function)
        monkeypatch.setattr(
            module, function, lambda *a, _of=function, _own=own, **k: calls.append(_of) or _own(*a, **k)
        )
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    assert not calls and report.replaced["attention"]["calls"] == report.replaced["attention"]["count"]
    before = list(asked)
    diffusion_models.run(model, given)
    assert asked == before  # a class of calls is asked about once
    kernels["attention"] = "cuda.attention"
    lz.configure(log_selections=False)  # any change of the policy asks again
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    assert "attention" in asked[len(before) :] and set(calls) == {"_attention"}
    lz.unkernelize(model)


@pytest.mark.parametrize("watch", ["observe", "require", "report", "record", "shadow"])
def test_calls_that_are_watched_go_through_the_operation(watch, launch_bound, diffusers):
    choices = importlib.import_module("layerzero.integrations.diffusers.choices")
    watching = importlib.import_module("layerzero.host.watching")
    rows = torch.randn(4, 64)

    def is_torchs():
        return choices.is_torchs("rms_norm", "torch.rms_norm", (4, 64), lambda: ((rows, None, 1e-6), {}))

    blocks = {
        "observe": lambda: lz.observe(lambda run: None),
        "require": lambda: lz.require(kernels=["*"]),
        "report": lz.report,
        "record": lz.record,
        "shadow": lz.shadow,
    }
    before = set(watching.watchers)
    assert is_torchs()
    with blocks[watch]():
        assert not is_torchs()
    assert is_torchs() and watching.watchers == before


def test_modulated_norms_of_small_samples_are_one_norm_and_one_launch(launch_bound, monkeypatch):
    parts = importlib.import_module("layerzero.integrations.diffusers.parts")
    model, given = diffusion_models.build("dit")
    expected = diffusion_models.run(model, given)
    report = lz.kernelize(model)
    norms = []
    own = parts._layer_norm
    monkeypatch.setattr(parts, "_layer_norm", lambda rows, *a, **k: norms.append(rows.dim()) or own(rows, *a, **k))
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    assert set(norms) == {3} and report.replaced["AdaLayerNormZero"]["calls"] == 2
    norms.clear()
    monkeypatch.setattr(parts, "_SMALL", 0)  # as large samples: a call for each
    assert error(diffusion_models.run(model, given), expected) < 1e-5
    assert norms.count(2) == 4
    lz.unkernelize(model)


def test_choices_are_the_engines_and_few_are_remembered(monkeypatch, diffusers):
    choices = importlib.import_module("layerzero.integrations.diffusers.choices")
    monkeypatch.setattr(choices, "_known", {})
    monkeypatch.setattr(choices, "_MOST", 2)
    rows, weight = torch.randn(4, 64), torch.ones(64)
    chosen = lz.explain("rms_norm", rows, weight, 1e-6).kernel_id
    call = ((rows, weight, 1e-6), {})
    assert choices.is_torchs("rms_norm", chosen, (1,), lambda: call)
    assert not choices.is_torchs("rms_norm", "torch.other", (2,), lambda: call)
    assert not choices.is_torchs("rms_norm", chosen, (3,), lambda: ((rows, weight[:3], 1e-6), {}))  # no call at all
    assert len(choices._known) == 1
    counted = []
    monkeypatch.setattr(choices, "_kernel_of", lambda *_: counted.append(1) or chosen)
    for turn in range(2 * choices._MOST_ASKED):  # plans that change all the time
        lz.configure(log_selections=bool(turn % 2))
        served = choices.is_torchs("rms_norm", chosen, (4,), lambda: call)
    assert len(counted) == choices._MOST_ASKED and not served
    lz.configure(log_selections=False)


def test_a_call_that_does_not_fit_is_the_rotations_own_error(diffusers):
    processors = importlib.import_module("layerzero.integrations.diffusers.processors")
    own = importlib.import_module("diffusers.models.embeddings").apply_rotary_emb
    rotate = processors.rotation_of(own)
    rows, tables = torch.randn(1, 2, 3, 8), (torch.randn(3, 8), torch.randn(3, 8))
    for args, kwargs in (((rows, tables), {"x": rows}), ((rows, tables, True, -1, 2, 7), {})):
        with torch.no_grad(), pytest.raises(TypeError, match="apply_rotary_emb"):
            rotate(*args, **kwargs)


def test_a_norm_that_was_pruned_keeps_its_weight(diffusers):
    parts = importlib.import_module("layerzero.integrations.diffusers.parts")
    norm, rows = torch.nn.LayerNorm(8), torch.randn(2, 8)
    torch.nn.init.normal_(norm.weight)
    importlib.import_module("torch.nn.utils.prune").l1_unstructured(norm, "weight", 4)
    with torch.no_grad():
        assert error(parts._layer(norm, rows), norm(rows)) < 1e-5


def test_code_that_computes_something_else_is_not_replaced(monkeypatch, diffusers):
    from diffusers.models import normalization

    monkeypatch.setattr(normalization.RMSNorm, "forward", lambda self, rows: rows * self.weight)
    model, _ = diffusion_models.build("sd3")
    report = lz.kernelize(model)
    reasons = {reason for name, reason in report.left.items() if ".norm_" in name}
    assert reasons == {"computes something else than norm.rms"} and "RMSNorm" not in report.replaced
    lz.unkernelize(model)


def test_options_and_types():
    model, _ = diffusion_models.build("vae")
    with pytest.raises(lz.InvalidRequestError, match="weights: wanted no such option"):
        lz.kernelize(model, "int8")
    lz.kernelize(model)
    with pytest.raises(RuntimeError, match="part of a kernelized model"):
        lz.kernelize(model.decoder)
    from layerzero.integrations.diffusers import kernelize

    with pytest.raises(lz.WrongTypeError):
        kernelize(3)


# ---- pipelines


def _pipeline(diffusers):
    transformer, _ = diffusion_models.build("dit")
    vae, _ = diffusion_models.build("vae")
    return diffusers.DiTPipeline(transformer, vae, diffusers.DDIMScheduler())


def _image(pipeline):
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return torch.as_tensor(pipeline([1, 2], num_inference_steps=3, generator=generator, output_type="np").images)


def test_a_pipeline(diffusers):
    pipeline = _pipeline(diffusers)
    expected = _image(pipeline)
    report = lz.kernelize(pipeline)
    assert set(report.components) == {"transformer", "vae"} and "transformer.attention" in report.replaced
    assert (_image(pipeline) - expected).abs().max() < 1e-4
    assert all(report.replaced[f"{part}.attention"]["calls"] for part in ("transformer", "vae")), str(report)
    assert "vae.GroupNorm" in report.left and "transformer.RoPE" not in report.replaced
    assert lz.unkernelize(pipeline) and torch.equal(_image(pipeline), expected)


def test_text_encoders_are_kernelized_as_transformers_models(diffusers):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPTextConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=99
    )
    unet, _ = diffusion_models.build("unet")
    vae, _ = diffusion_models.build("vae")
    encoder = transformers.CLIPTextModel(config).eval()
    pipeline = diffusers.StableDiffusionPipeline(
        vae,
        encoder,
        None,
        unet,
        diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
        None,
        None,
        requires_safety_checker=False,
    )
    report = lz.kernelize(pipeline)
    assert "text_encoder.attention" in report.replaced and "unet.attention" in report.replaced
    assert lz.unkernelize(pipeline) and not lz.unkernelize(pipeline)


def test_new_pipelines(diffusers):
    from layerzero.integrations.diffusers.kernelizing import is_kernelized
    from layerzero.integrations.pipelines import serve_pipelines

    own = diffusers.DiffusionPipeline.register_modules
    serve_pipelines()
    serve_pipelines()
    try:
        pipeline = _pipeline(diffusers)
        assert is_kernelized(pipeline.transformer) and is_kernelized(pipeline.vae)
    finally:
        serve_pipelines(False)
    assert diffusers.DiffusionPipeline.register_modules is own
    assert not is_kernelized(_pipeline(diffusers).transformer)
