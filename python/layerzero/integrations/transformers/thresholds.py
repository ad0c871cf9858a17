"""Bounds that a small input does not show, because they are in a branch that it does not take. They are found by the names in the
code of modules, with the conditions of the branches around them; what every forward does is in the graph.
"""

import ast
import functools
import inspect
import re
import textwrap
from typing import Any

_CLAMPS = {"clamp", "clamp_", "clip", "clip_"}
_THRESHOLDS = {*_CLAMPS, "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", "floor", "fmax", "fmin", "hardtanh", "hardtanh_",
               "maximum", "minimum", "nan_to_num", "nan_to_num_", "relu6"}  # fmt: skip
_SWITCH = re.compile(r"self\.(\w+)")
_OPTION = re.compile(r"self\.config\.(\w+) is not None")
_HALF = re.compile(r"\w+\.dtype == torch\.float16( and (?!.*\bor\b).*)?")


def why_not_shown(module: Any, half: bool) -> str | None:
    """None, or why no small input shows what a module's code does. Clamps that every forward calls are in the graph."""
    found = sorted({name for name, tests in _sites_of(module, half) if name not in _CLAMPS or not _are_certain(tests)})
    return f"its code calls {found[0]}: no small input shows what that does" if found else None


def clamps_of(module: Any, half: bool) -> int:
    """How many clamps a module's code calls in each forward."""
    return sum(name in _CLAMPS for name, _ in _sites_of(module, half))


def _sites_of(module: Any, half: bool) -> list[tuple[str, tuple[str, ...]]]:
    """[(name, conditions of the branches around it)] of the bounds in a module's forward and in the methods and functions of its
    file that this calls; without branches for options that are off, or for float16 unless `half`.
    """
    sites: list[tuple[str, tuple[str, ...]]] = []

    def add(function: Any, tests: tuple[str, ...], callers: tuple[Any, ...]) -> None:
        for name, inner in _names_by_test(function):
            if any(_is_left_out(test, module, half) for test in inner):
                continue
            if name in _THRESHOLDS:
                sites.append((name, (*tests, *inner)))
            known = function.__globals__.get(name, getattr(type(module), name, None))
            helper: Any = inspect.unwrap(known) if callable(known) else None
            own = getattr(helper, "__module__", None) in (function.__module__, type(module).__module__)
            if own and hasattr(helper, "__code__") and helper not in callers:
                add(helper, (*tests, *inner), (*callers, helper))

    own = inspect.unwrap(type(module).forward)
    if not type(module).__module__.startswith("torch.") and hasattr(own, "__code__"):
        add(own, (), (own,))
    return sites


def _are_certain(tests: tuple[str, ...]) -> bool:
    """Whether the configuration alone decides on these branches."""
    return all(_OPTION.fullmatch(test) or _SWITCH.fullmatch(test) for test in tests)


@functools.lru_cache(maxsize=1024)  # layers of one class have one code
def _names_by_test(function: Any) -> list[tuple[str, tuple[str, ...]]]:
    """(name, the tests of the branches around it) of a function's code."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return [(name, ()) for name in function.__code__.co_names]
    found = []

    def walk(node: ast.AST, tests: tuple[str, ...]) -> None:
        name = getattr(node, "attr", getattr(node, "id", None))
        if name is not None:
            found.append((name, tests))
        body: list[ast.stmt] = node.body if isinstance(node, ast.If) else []
        inner = (*tests, ast.unparse(node.test)) if isinstance(node, ast.If) else tests
        for part in ast.iter_child_nodes(node):
            walk(part, inner if part in body else tests)

    walk(tree, ())
    return found


def _is_left_out(test: str, module: Any, half: bool) -> bool:
    option, switch = _OPTION.fullmatch(test), _SWITCH.fullmatch(test)
    if option:
        return getattr(getattr(module, "config", None), option[1], 0) is None
    if switch:
        return module.__dict__.get(switch[1], 0) in (None, False)
    return not half and bool(_HALF.fullmatch(test))
