"""Lists the required items that operations lack: {operation: [items]}. Needs the built package and torch."""

import json
import re
from pathlib import Path
from typing import Any

import layerzero
import torch
from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.torch import operators

ROOT = Path(__file__).resolve().parent.parent
# Matches `replaces` of a contract if that is a function of torch or a family of them, without an expression around it.
_CALL = r"torch\.[\w.]+(?:\((?:[^()]|\([^()]*\))*\))?"
EQUAL_FUNCTION = re.compile(rf"input\.to\(dtype\)|{_CALL}(?:(?:, |; | or )(?:{_CALL}|\w+(?:\([^=]*\))?))*")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def items_of(
    contract: dict[str, Any], references: set[str], torch_rows: set[str], matrix: str, stub: str, has_torch: bool
) -> dict[str, bool]:
    """Returns item -> whether it exists. `references`: operations that have an FP64 reference in C++; `torch_rows`:
    those with a kernel of torch's own."""
    name, path = contract["name"], contract["path"]
    ids = [variant["id"] for variant in contract["operations"]]
    page = read(ROOT / f"docs/operations/{name}.md")
    # A page wraps and escapes the contract's text, so only letters and digits are compared.
    plain = "".join(c for c in page if c.isalnum())

    def shows(text: str) -> bool:
        return bool(text) and "".join(c for c in text if c.isalnum()) in plain

    tolerance = contract["tolerance"]
    bounds = [v for k, v in tolerance.items() if k != "compare"]
    cases = [line for line in read(ROOT / f"tests/ops/{path}.cases").splitlines() if line and not line.startswith("#")]
    operator = f"layerzero::{name}"
    equal = EQUAL_FUNCTION.fullmatch(contract["replaces"]) is not None
    return {
        "schema": bool(contract["params"]) and all(p["doc"] for p in contract["params"]),
        "definition": bool(contract["definition"]) and bool(contract["source"]),
        "FP64 reference": all(i in references for i in ids),
        "torch reference": (ROOT / f"ops/{path}_ref.py").is_file(),
        "torch row": not equal or any(i in torch_rows for i in ids),
        "tolerances": bool(tolerance["compare"]) and all(b > 0 for b in bounds),
        "cases": any(not line.startswith("refuse ") for line in cases),
        "refused cases": any(line.startswith("refuse ") for line in cases),
        "API function": callable(getattr(layerzero, name, None)) and f"def {name}(" in stub,
        "torch.ops": not has_torch or hasattr(torch.ops.layerzero, name),
        "fake": not has_torch or operator in torch._C._dispatch_get_registrations_for_dispatch_key("Meta"),
        "docs page": shows(contract["definition"]) and shows(contract["source"]),
        "matrix row": all(f"`{i}`" in matrix or f" {i} " in matrix for i in ids),
    }


def missing() -> dict[str, list[str]]:
    has_torch = operators.register()
    kernels = json.loads(_layerzero.kernels(None, False))
    references = {k["operation"] for k in kernels if k["reference"] and k["native"]}
    # A kernel that adapts a function of torch: neither native nor an own torch expression.
    torch_rows = {k["operation"] for k in kernels if k["source"] == "torch" and not k["reference"]}
    matrix, stub = read(ROOT / "docs/support-matrix.md"), read(ROOT / "python/layerzero/_operations.pyi")
    found = {}
    for name, contract in contracts().items():
        lacks = [
            item
            for item, there in items_of(contract, references, torch_rows, matrix, stub, has_torch).items()
            if not there
        ]
        if lacks:
            found[name] = lacks
    return found
