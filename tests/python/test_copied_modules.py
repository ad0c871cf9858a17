"""Copies of modules whose forward was replaced: each computes with its own weights, however it was made."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from small_llama import TOLERANCE, error, ids_of, logits_of, tiny  # noqa: E402
from torch import nn  # noqa: E402


def by_torch(module):
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


# Those of copy.copy share the tables of their parameters and parts; those of DataParallel the attributes.
SHARING = {"copy": copy.copy, "replica": lambda module: module._replicate_for_data_parallel()}
APART = {"deepcopy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module)), "torch.save": by_torch}


def doubled(module):
    """The module with weights of its own."""
    module._parameters = {
        name: None if held is None else nn.Parameter(2 * held.detach()) for name, held in module._parameters.items()
    }
    return module


@pytest.fixture(scope="module")
def model():
    built = tiny()
    lz.kernelize(built)
    yield built
    lz.unkernelize(built)
    names = ("forward", "_replicate_for_data_parallel", "__reduce_ex__", "__setstate__")
    assert not [name for module in built.modules() for name in names if name in module.__dict__]


@pytest.mark.parametrize("path", ["model.norm", "model.layers.0.mlp.gate_proj"])
@pytest.mark.parametrize("made", {**SHARING, **APART})
def test_a_copy_computes_with_its_own_weights(model, made, path):
    part = model.get_submodule(path)
    assert "forward" in part.__dict__
    whole = {name: held.clone() for name, held in part.named_parameters()}
    other = (SHARING | APART)[made](part)
    if made == "replica":
        other._parameters = dict(part._parameters)
    doubled(other)
    rows = torch.randn(2, 96)
    with torch.inference_mode():
        assert error(other(rows), 2 * part(rows)) <= TOLERANCE
    assert ("forward" in other.__dict__) == (made in APART)
    assert all(torch.equal(held, whole[name]) for name, held in part.named_parameters())


@pytest.mark.parametrize("made", SHARING)
def test_an_attribute_of_a_copy_is_its_own(model, made):
    norm = model.model.norm
    other = SHARING[made](norm)
    other._parameters = norm._parameters
    other.variance_epsilon = 1e6
    with torch.inference_mode():
        assert other(torch.ones(1, 96)).abs().max() < 0.1 < norm(torch.ones(1, 96)).abs().max()


@pytest.mark.parametrize("made", SHARING)
def test_a_copy_of_a_model_is_none_that_is_kernelized(model, made):
    ids = ids_of(12)
    expected = logits_of(model, ids)
    other = SHARING[made](model)
    if made == "replica":
        other._parameters, other._modules = dict(model._parameters), dict(model._modules)
    other._modules = {**model._modules, "lm_head": doubled(copy.copy(model.lm_head))}
    assert not lz.unkernelize(other)  # its parts are the model's
    assert error(logits_of(other, ids), 2 * expected) <= TOLERANCE
    assert torch.equal(logits_of(model, ids), expected)


def test_a_copy_of_a_copy_that_is_apart(model):
    other = copy.copy(copy.deepcopy(model.model.norm))
    assert "forward" not in other.__dict__ and "__setstate__" not in other.__dict__


def test_a_class_with_its_own_way_to_be_copied(model, monkeypatch):
    norm = model.model.norm
    monkeypatch.setattr(type(norm), "__reduce_ex__", lambda self, protocol: "a name")
    assert norm.__reduce_ex__(4) == "a name"
