"""The enums by which C++ code reads a contract's tensors, scalars and axes (ops/*.h) are in the order of its tables."""

import json
import re
from pathlib import Path

import pytest
from layerzero import _layerzero

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = {contract["path"]: contract for contract in json.loads(_layerzero.contracts())}
ENUM = re.compile(r"^enum (Tensor|Scalar|Axis) \{([^}]*)\};", re.MULTILINE)

TAKEN = {"indices": "blockindices"}  # kIndices is the mask of index dtypes


def letters(name: str) -> str:
    return name.replace("_", "").lower()


def names_of(contract: dict, kind: str) -> list[str]:
    """The names that the enum has to have, in order."""
    if kind == "Axis":
        return contract["axes"]
    tensors = [p["name"] for p in contract["params"] if (p["kind"] == "tensor") == (kind == "Tensor")]
    return tensors + [o["name"] for o in contract["outputs"]] if kind == "Tensor" else tensors


def enums() -> list[tuple[str, str, list[str]]]:
    """(path of the operation, kind, enumerators without their k) of every enum."""
    found = []
    for path in CONTRACTS:
        text = re.sub(r"//.*", "", (ROOT / "ops" / f"{path}.h").read_text())
        for kind, body in ENUM.findall(text):
            found.append((path, kind, [letters(one.strip()[1:]) for one in body.split(",") if one.strip()]))
    return found


def wrong(enumerators: list[str], names: list[str]) -> list[str]:
    """What does not fit. An output that has the name of an input has "Out" at its end."""
    faults = [f"{len(enumerators)} enumerators of {len(names)} names"] if len(enumerators) > len(names) else []
    for place, (enumerator, name) in enumerate(zip(enumerators, names, strict=False)):
        wanted = TAKEN.get(name) or letters(name) + ("out" if name in names[:place] else "")
        if enumerator != wanted:
            faults.append(f"{enumerator}, wanted {wanted}")
    return faults


def test_an_enum_of_another_order_is_found():
    assert wrong(["query", "key"], ["query", "key", "value"]) == []
    assert wrong(["key", "query"], ["query", "key"]) == ["key, wanted query", "query, wanted key"]
    assert wrong(["query", "key"], ["query"]) == ["2 enumerators of 1 names"]


def test_there_are_enums():
    assert len(enums()) > 100


@pytest.mark.parametrize(
    ("path", "kind", "enumerators"), enums(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_enum_is_in_the_order_of_its_table(path, kind, enumerators):
    assert wrong(enumerators, names_of(CONTRACTS[path], kind)) == []
