"""Weights of one input in one memory: what moves, what stays, what reads them afterwards."""

import copy
import types

import pytest
import torch
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


def test_a_copy_and_a_file_have_each_parameter(tmp_path):
    parts = nn.ModuleList(linears())
    moved(parts)
    again = copy.deepcopy(parts)
    assert side_by_side([part.weight for part in again]) is None
    assert all(map(torch.equal, again.parameters(), parts.parameters()))
    torch.save(parts.state_dict(), tmp_path / "weights.pt")
    loaded = torch.load(tmp_path / "weights.pt")
    assert all(torch.equal(loaded[name], value) for name, value in parts.state_dict().items())
    files = pytest.importorskip("safetensors.torch")
    files.save_file(parts.state_dict(), str(tmp_path / "weights.safetensors"))
    loaded = files.load_file(str(tmp_path / "weights.safetensors"))
    assert all(torch.equal(loaded[name], value) for name, value in parts.state_dict().items())


def test_apart_again():
    parts = linears()
    values = [part.weight.clone() for part in parts]
    moved(parts)
    put_apart([[part.weight for part in parts]])
    assert side_by_side([part.weight for part in parts]) is None
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
        put_apart([[part.weight for part in parts]])
    assert side_by_side([part.weight for part in parts]) is None
    assert all(part.weight.is_inference() == made_in for part in parts)
