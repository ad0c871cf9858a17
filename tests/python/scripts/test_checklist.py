"""Every operation of the registry has all that an operation must have."""

import pytest

torch = pytest.importorskip("torch")

import checklist  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402


def test_every_operation_has_every_item():
    assert checklist.missing() == {}


def test_a_missing_item_is_named():
    """Each item is missing from a contract that has nothing."""
    empty = {"name": "nothing", "path": "no/where", "operations": [{"id": "no.where"}], "params": [], "definition": ""}
    empty |= {"source": "", "replaces": "torch.nothing(input)", "tolerance": {"compare": "", "float32": 0}}
    items = checklist.items_of(empty, set(), set(), "", "", True)
    assert [item for item, there in items.items() if there] == []
    some = next(iter(contracts()))
    assert set(items) == set(checklist.items_of(contracts()[some], set(), set(), "", "", True))


def test_a_function_of_torch_is_told_from_an_expression():
    """What needs a row of torch's own, by the contract's words."""
    for text in (
        "torch.softmax(logits.float(), dim=-1)",
        "torch.nn.functional.silu, gelu; torch.tanh",
        "input.to(dtype)",
    ):
        assert checklist.EQUAL_FUNCTION.fullmatch(text)
    for text in (
        "torch.nn.functional.silu(gate) * up",
        "gathering, then torch.softmax(x)",
        "residual = torch.add(a, b)",
    ):
        assert not checklist.EQUAL_FUNCTION.fullmatch(text)
    equal = {n for n, c in contracts().items() if checklist.EQUAL_FUNCTION.fullmatch(c["replaces"])}
    assert {"attention", "rms_norm", "linear", "softmax", "conv2d", "cast", "convert", "embedding"} <= equal
