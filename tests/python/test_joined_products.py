"""Weights of one input in one memory: what moves, what stays, what reads them afterwards."""

import copy
import importlib
import io
import pickle
import types

import pytest
import torch
from layerzero import _layerzero
from layerzero.integrations.transformers.run import products as products_module
from layerzero.integrations.transformers.run.products import Products, put_apart, put_together, side_by_side
from torch import nn


def linears(sizes=(8, 4, 4), width=16, bias=True):
    torch.manual_seed(0)
    return [nn.Linear(width, n, bias=bias) for n in sizes]


def plan_of(blocks=None):
    return types.SimpleNamespace(linears={}, blocks=lambda table: blocks)


def moved(parts, names=("weight", "bias")):
    return put_together([[getattr(part, name) for part in parts] for name in names])


@pytest.mark.parametrize("bias", [True, False])
def test_one_product_of_several(bias):
    parts, x = linears(bias=bias), torch.randn(2, 3, 16)
    expected = [part(x) for part in parts]
    tables = [part._parameters for part in parts]
    products = Products(plan_of())
    assert products.together(x, tables) is None
    kept = [part.weight for part in parts]
    assert moved(parts, ("weight", "bias") if bias else ("weight",))
    assert all(part.weight is own for part, own in zip(parts, kept, strict=True))
    assert not moved(parts, ("weight",)), "they are there already"
    found = Products(plan_of()).together(x, tables)
    assert found is not None
    for own, one in zip(expected, found, strict=True):
        torch.testing.assert_close(one, own)
    with torch.no_grad():
        parts[1].weight.zero_()
    torch.testing.assert_close(
        Products(plan_of()).together(x, tables)[1], parts[1](x)
    )  # written in place: the one product reads it


def test_weights_in_blocks_are_no_parameters():
    parts = linears()
    moved(parts)
    assert Products(plan_of(blocks=object())).together(torch.randn(1, 16), [p._parameters for p in parts]) is None


def test_what_shares_its_memory_stays():
    parts = linears()
    alias = parts[1].weight.detach()
    assert not moved(parts, ("weight",))
    alias.zero_()
    assert not parts[1].weight.any()
    other = linears()
    other[0].weight = nn.Parameter(torch.randn(32, 16)[::4])
    assert not moved(other, ("weight",))
    third = linears()
    third[2].double()
    assert not moved(third, ("weight",))


def whole(parameters):
    """Each has a storage of its own, of its own size."""
    storages = [parameter.untyped_storage() for parameter in parameters]
    sizes = [parameter.nbytes for parameter in parameters]
    return [s.nbytes() for s in storages] == sizes and len({s.data_ptr() for s in storages}) == len(storages)


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_parameter_has_its_own_storage_in_one_memory(dtype):
    parts = [nn.Parameter(torch.randn(n, 16).to(dtype), requires_grad=n > 4) for n in (8, 4, 2)]
    values = [part.detach().clone() for part in parts]
    assert put_together([parts]) and whole(parts)
    assert [part.data_ptr() - parts[0].data_ptr() for part in parts] == [0, parts[0].nbytes, parts[0].nbytes * 3 // 2]
    one = side_by_side(parts)
    assert one.dtype == dtype and torch.equal(one.view(torch.uint8), torch.cat(values).view(torch.uint8))
    assert [part.requires_grad for part in parts] == [True, False, False]


@pytest.fixture
def joined():
    parts = nn.ModuleList(linears())
    assert moved(parts)
    return parts


def saved_by_torch(model, folder):
    torch.save(model.state_dict(), folder / "weights.pt")
    return torch.load(folder / "weights.pt")


def saved_as_file(model, folder):
    files = importlib.import_module("safetensors.torch")
    files.save_file(model.state_dict(), str(folder / "model.safetensors"))
    return files.load_file(str(folder / "model.safetensors"))


def saved_as_model(model, folder):
    files = importlib.import_module("safetensors.torch")
    files.save_model(model, str(folder / "model.safetensors"))
    return files.load_file(str(folder / "model.safetensors"))


def saved_for_the_hub(model, folder):
    pytest.importorskip("huggingface_hub").save_torch_model(model, str(folder))
    return importlib.import_module("safetensors.torch").load_file(str(folder / "model.safetensors"))


def saved_by_accelerate(model, folder):
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True).save_model(model, str(folder))
    return importlib.import_module("safetensors.torch").load_file(str(folder / "model.safetensors"))


SAVERS = [saved_by_torch, saved_as_file, saved_as_model, saved_for_the_hub, saved_by_accelerate]


@pytest.mark.parametrize("save", SAVERS)
def test_a_file_has_each_parameter(save, joined, tmp_path):
    loaded, expected = save(joined, tmp_path), joined.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())


def test_a_pretrained_model_is_saved_whole(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, **sizes))
    mlp, own = model.model.layers[0].mlp, model.model.layers[0].self_attn
    for parts in ([mlp.gate_proj, mlp.up_proj], [own.q_proj, own.k_proj, own.v_proj]):
        assert moved(parts, ("weight",))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert all(map(torch.equal, again.parameters(), model.parameters()))


def test_one_parameter_in_a_file_is_no_larger_than_itself(joined):
    sizes = []
    for part in (joined[1].weight, nn.Parameter(torch.randn(4, 16))):
        file = io.BytesIO()
        torch.save(part, file)
        sizes.append(len(file.getvalue()))
    assert sizes[0] <= sizes[1] + 64


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_not_joined(again, joined):
    other = again(joined)
    assert whole(list(other.parameters())) and side_by_side([part.weight for part in other]) is None
    assert all(map(torch.equal, other.parameters(), joined.parameters()))
    places = [each.data_ptr() for each in other.parameters()]
    put_apart(other.parameters())
    assert places == [each.data_ptr() for each in other.parameters()], "there was nothing to put apart"


@pytest.mark.parametrize("change", [lambda m: m.to(torch.float64), lambda m: m.half(), lambda m: m.to("meta")])
def test_the_memory_goes_with_the_last_parameter_in_it(change, joined):
    products = Products(plan_of())
    with torch.no_grad():
        assert products.together(torch.randn(1, 16), [part._parameters for part in joined]) is not None
    memories = [products_module._moved[getattr(joined[0], name).data_ptr()] for name in ("weight", "bias")]
    assert not any(memory.expired() for memory in memories)
    change(joined)
    assert all(memory.expired() for memory in memories) and products.found


def test_a_replaced_member_leaves_the_others_apart_and_joins_again(joined):
    group = [part.weight for part in joined]
    memory = products_module._moved[group[0].data_ptr()]
    group[0].data = torch.randn(8, 16)
    assert side_by_side(group) is None and not memory.expired()
    values = [part.detach().clone() for part in group]
    assert put_together([group]) and memory.expired() and whole(group)
    assert torch.equal(side_by_side(group), torch.cat(values))
    memory = products_module._moved[group[0].data_ptr()]
    group[0].data = group[0].detach().clone()
    place = group[0].data_ptr()
    put_apart(group)
    assert memory.expired() and whole(group) and all(map(torch.equal, group, values))
    assert group[0].data_ptr() == place, "it was not ours any more"


def test_views_of_a_buffer_of_the_user_stay_views():
    flat = torch.randn(16, 8)
    group = [nn.Parameter(part) for part in flat.split([8, 8])]
    assert not put_together([group]) and torch.equal(side_by_side(group), flat)
    put_apart(group)
    assert all(part.untyped_storage().data_ptr() == flat.data_ptr() for part in group)


def test_weights_stay_where_a_torch_mode_sees_each_call():
    from torch._subclasses.fake_tensor import FakeTensorMode

    parts = linears(bias=False)
    group = [part.weight for part in parts]
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not put_together([group])
    assert put_together([group])
    values = [part.detach().clone() for part in group]
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not _layerzero.programs_may_run()
        assert Products(plan_of()).together(torch.randn(1, 16), [part._parameters for part in parts]) is None
        put_apart(group)
    assert all(type(part.data) is torch.Tensor for part in group) and all(map(torch.equal, group, values))


def test_the_device_is_waited_for_once_before_and_once_after_the_moves(monkeypatch):
    """Other streams may read the weights where they were, and where they are."""
    done = []
    move = products_module._move
    monkeypatch.setattr(products_module, "_wait_for", lambda parameter: done.append("wait"))
    monkeypatch.setattr(products_module, "_move", lambda group: done.append("move") or move(group))
    parts = linears()
    assert moved(parts) and done == ["wait", "move", "move", "wait"]
    assert not moved(parts) and len(done) == 4


def test_apart_again():
    parts = linears()
    values = [part.weight.clone() for part in parts]
    moved(parts)
    place = parts[0].weight.data_ptr()
    put_apart(part.weight for part in parts)
    assert side_by_side([part.weight for part in parts]) is None and parts[0].weight.data_ptr() != place
    for part, value in zip(parts, values, strict=True):
        assert part.weight.untyped_storage().nbytes() == part.weight.nbytes and torch.equal(part.weight, value)


def test_gradients_of_moved_parameters():
    parts, x = linears(), torch.randn(2, 16)
    moved(parts)
    sum(part(x).sum() for part in parts).backward()
    torch.testing.assert_close(parts[0].weight.grad, x.sum(0).expand(8, 16))


@pytest.mark.parametrize("made_in", [True, False])
def test_parameters_and_calls_of_inference_mode(made_in):
    with torch.inference_mode(made_in):
        parts = linears(bias=False)
    with torch.inference_mode():
        assert moved(parts, ("weight",))
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            x = torch.randn(1, 16)
            for own, one in zip(parts, Products(plan_of()).together(x, [p._parameters for p in parts]), strict=True):
                torch.testing.assert_close(one, own(x))
    if not made_in:
        parts[0](torch.randn(1, 16)).sum().backward()
    with torch.inference_mode():
        put_apart([part.weight for part in parts])
    assert side_by_side([part.weight for part in parts]) is None
    assert all(part.weight.is_inference() == made_in for part in parts)
