"""Every operation of the registry has all that an operation must have."""

import pytest

torch = pytest.importorskip("torch")

import checklist  # noqa: E402
from layerzero._contracts import contracts  # noqa: E402


def test_every_operation_has_every_item():
    assert checklist.missing() == {}


def test_a_missing_item_is_named():
    """Each item is missing from a contract that has nothing."""
    empty = {"name": "nothing", "path": "no/where", "operations": [{"id": "no.where"}], "params": [], "definition": ""}
    empty |= {"source": "", "tolerance": {"compare": "", "float32": 0}}
    items = checklist.items_of(empty, set(), "", "", True)
    assert [item for item, there in items.items() if there] == []
    some = next(iter(contracts()))
    assert set(items) == set(checklist.items_of(contracts()[some], set(), "", "", True))
