"""Compares LayerZero's classes for a serving engine with the engine's recorded signatures; nothing is imported."""

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]


def recorder():
    """scripts/engine_signatures.py."""
    spec = importlib.util.spec_from_file_location("engine_signatures", ROOT / "scripts/engine_signatures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def body(path, name):
    return recorder().named(ast.parse(path.read_text()).body, name).body


def takes(own, theirs):
    """Whether a function with the parameters `own` can be called in every way in which `theirs` can."""
    rest, named = any(p.startswith("*") and p[1] != "*" for p in own), any(p.startswith("**") for p in own)
    plain = [p for p in own if not p.startswith("*")]
    for index, parameter in enumerate(p for p in theirs if not p.startswith("*")):
        if index < len(plain):
            if plain[index].rstrip("?") != parameter.rstrip("?") or (parameter[-1] == "?" and plain[index][-1] != "?"):
                return False
        elif not (rest and named):
            return False
    return all(p.endswith("?") for p in plain[len(theirs) :])


def fields_read(path, names):
    """The attributes that a file reads of its variables `names`, like `batch` or `forward_batch`."""
    found = set()
    for one in ast.walk(ast.parse(path.read_text())):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in names:
            found.add(one.attr)
        is_getattr = isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "getattr"
        if is_getattr and isinstance(one.args[0], ast.Name) and one.args[0].id in names:
            found.add(one.args[1].value)
    return found
