"""What is packed from a weight is not used after a write into the weight, however that is done, or packing is refused."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402

IDS = torch.arange(3, 15)[None]
KINDS = ("int8", "int4", "bf16")


def make(seed=0):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 120}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=False, initializer_range=0.1)
    return transformers.LlamaForCausalLM(config).eval()


def logits(model, part_by_part=False):
    """part_by_part: a hook on a layer makes the program step aside."""
    handle = model.model.layers[0].register_forward_hook(lambda *_: None) if part_by_part else None
    with torch.inference_mode():
        result = model(input_ids=IDS, use_cache=False).logits
    if handle:
        handle.remove()
    return result.clone()


def packed(kind, model=None):
    model = model or make()
    lz.kernelize(model, kind, max_perplexity_ratio=100.0)
    return model


def weights_of(model):
    return [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]


def all_weights(change):
    def write(model):
        with torch.no_grad():
            for weight in weights_of(model):
                change(weight)

    return write


def optimizer_step(model):
    parameters = weights_of(model)
    with torch.enable_grad():
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(parameters, lr=0.5).step()


def in_inference_mode(write):
    def written(model):
        with torch.inference_mode():
            write(model)

    return written


def loaded(model, **options):
    model.load_state_dict(make(seed=4).state_dict(), **options)


WRITES = {
    "zero_": all_weights(lambda w: w.zero_()),
    "copy_": all_weights(lambda w: w.copy_(w.flip(0))),
    "mul_": all_weights(lambda w: w.mul_(-3)),
    "data.zero_": all_weights(lambda w: w.data.zero_()),
    "data.mul_": all_weights(lambda w: w.data.mul_(-3)),
    "data.copy_": all_weights(lambda w: w.data.copy_(w.data.flip(0))),
    "data=": all_weights(lambda w: setattr(w, "data", w.data.flip(0))),
    "NumPy": all_weights(lambda w: np.negative(w.detach().numpy(), out=w.detach().numpy())),
    "load_state_dict": loaded,
    "load_state_dict, assign": lambda model: loaded(model, assign=True),
    "optimizer": optimizer_step,
}
WRITES |= {
    f"{name} in inference mode": in_inference_mode(WRITES[name])
    for name in ("zero_", "copy_", "mul_", "load_state_dict")
}


@pytest.mark.parametrize("kind, part_by_part", [*((kind, False) for kind in KINDS), ("int8", True)])
@pytest.mark.parametrize("write", sorted(WRITES))
def test_a_write_counts(write, kind, part_by_part):
    model, own = packed(kind), make()
    before = logits(model, part_by_part)
    for each in (model, own):
        WRITES[write](each)
    expected = logits(own, part_by_part)
    assert (expected - before).norm() > 0.3 * before.norm(), "the write changes nothing: a test that cannot fail"
    assert (logits(model, part_by_part) - expected).norm() <= 1e-4 * expected.norm().clamp(min=1)


@pytest.mark.parametrize("write", ["mul_", "data.mul_"])
@pytest.mark.parametrize("copied", ["deepcopy", "torch.save"])
def test_a_write_into_a_copy_counts(copied, write):
    model, own = packed("int8"), make()
    if copied == "deepcopy":
        other = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    before = logits(model)
    assert torch.equal(logits(other), before)
    for each in (other, own):
        WRITES[write](each)
    expected = logits(own)
    assert (logits(other) - expected).norm() <= 1e-4 * expected.norm()
    assert torch.equal(logits(model), before)


def test_without_a_write_blocks_are_used():
    """Control: else the tests above would pass for nothing."""
    model, own = packed("int4"), make()
    assert not torch.allclose(logits(model), logits(own), rtol=1e-3, atol=1e-4)


# ---- parameters into which torch counts no writes


def loaded_in_inference_mode():
    with torch.inference_mode():
        return make()


def copied_in_inference_mode():
    with torch.inference_mode():
        return copy.deepcopy(make())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", [loaded_in_inference_mode, copied_in_inference_mode])
def test_inference_tensors_are_refused(made, kind):
    model = made()
    before = logits(model)
    with pytest.raises(
        InvalidRequestError, match=r"inference tensors.*outside of torch\.inference_mode.*release_originals"
    ):
        packed(kind, model)
    assert torch.equal(logits(model), before) and not lz.unkernelize(model)
    lz.kernelize(model)  # without blocks nothing is packed


@pytest.mark.parametrize("made", [loaded_in_inference_mode, copied_in_inference_mode])
def test_inference_tensors_may_be_released(made):
    model = made()
    expected = logits(packed("int8"))
    lz.kernelize(model, "int8", max_perplexity_ratio=100.0, release_originals=True)
    assert torch.allclose(logits(model), expected, rtol=1e-4, atol=1e-5)


def test_a_copy_made_in_inference_mode_uses_its_parameters():
    model = packed("int4")
    with torch.inference_mode():
        other = copy.deepcopy(model)
        for weight in weights_of(other):
            weight.mul_(-3)
    own = make()
    WRITES["mul_"](own)
    assert torch.allclose(logits(other), logits(own), rtol=1e-3, atol=1e-4)


def test_gguf_blocks_and_a_write():
    pytest.importorskip("gguf")
    from layerzero.models.gguf import load, resolve_model

    path, is_gguf = resolve_model(None)
    assert is_gguf
    model, _ = load(str(path), "f32")
    model = copy.deepcopy(model)  # others get the one that is kept
    model.__dict__["_gguf_path"] = str(path)
    lz.kernelize(model, "gguf")
    assert logits(model).abs().max() > 1
    WRITES["data.zero_"](model)
    assert not logits(model).any() and not logits(model, part_by_part=True).any()


# ---- PackedWeights


def weight(seed=0):
    return torch.randint(0, 256, (16, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


PACKED_WRITES = {
    "zero_": lambda w: w.zero_(),
    "copy_": lambda w: w.copy_(weight(1)),
    "in inference mode": in_inference_mode(lambda w: w.zero_()),
    "data": lambda w: w.data.bitwise_not_(),
    "NumPy": lambda w: np.invert(w.numpy(), out=w.numpy()),
    "a view": lambda w: w[3:].zero_(),
}


@pytest.mark.parametrize("write", sorted(PACKED_WRITES))
def test_packed_weights_after_a_write(write):
    cache, given = lz.PackedWeights(1 << 20), weight()
    before = cache.get("a", given)
    assert cache.get("a", given) is before and cache.get("a", given.view(16, 32)) is before
    PACKED_WRITES[write](given)
    after = cache.get("a", given)
    assert torch.equal(after, lz.linear_prepack(given)) and not torch.equal(after, before)
    assert (len(cache), cache.nbytes) == (1, after.nbytes) and cache.get("a", given) is after


def test_packed_weights_of_another_tensor():
    cache = lz.PackedWeights(1 << 20)
    cache.get("a", weight())
    assert torch.equal(cache.get("a", weight(1)), lz.linear_prepack(weight(1)))


def test_packed_weights_of_an_array():
    cache, given = lz.PackedWeights(1 << 20), weight().numpy().copy()
    before = cache.get("a", given)
    assert cache.get("a", given) is before
    given[3, 5] ^= 1
    assert (np.asarray(cache.get("a", given)) == np.asarray(lz.linear_prepack(given))).all()


def test_packed_weights_refuse_inference_tensors():
    with torch.inference_mode():
        given = weight().clone()
        with pytest.raises(InvalidRequestError, match="inference tensor"):
            lz.PackedWeights(1 << 20).get("a", given)
