"""What shows in no small input: a bound that only large numbers reach, a factor that grows with the position. Found by the
names in the code of modules; clamps that every forward calls, by their calls, which have the bounds. So are comparisons,
whatever is done by them: torch.where, masked_fill, a product, a branch; and functions that compare on their own, as rounding
does.
"""

import ast
import contextlib
import functools
import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CLAMPS = {"clamp", "clamp_", "clip", "clip_"}
_FURTHER = {
    "floor",
    "fmax",
    "fmin",
    "hardtanh",
    "hardtanh_",
    "maximum",
    "minimum",
    "nan_to_num",
    "nan_to_num_",
    "relu6",
}
_THRESHOLDS = {*_CLAMPS, "clamp_max", "clamp_max_", "clamp_min", "clamp_min_", *_FURTHER}
_COMPARISONS = {
    *("gt", "ge", "lt", "le", "greater", "greater_equal", "less", "less_equal"),
    *("eq", "__eq__", "ne", "not_equal"),
    *("isinf", "isposinf", "isneginf", "isnan", "isfinite", "isclose", "allclose"),
    *("sign", "sgn", "signbit", "heaviside", "threshold", "_threshold", "bucketize", "searchsorted"),
    *("ceil", "fix", "fmod", "frac", "floor_divide", "__floordiv__", "remainder", "round", "trunc"),
    *("hardshrink", "softshrink"),
    *("item", "tolist", "numpy", "__bool__", "__float__", "__int__"),
}
_SWITCH = re.compile(r"self\.(\w+)")
_OPTION = re.compile(r"self\.config\.(\w+) is not None")
_HALF = re.compile(r"\w+\.dtype == torch\.float16( and (?!.*\bor\b).*)?")


class Calls(TorchFunctionMode):
    """Tells `clamps` of each clamp before it is done: what goes through it, and its bounds; and `compares` of the name of
    each function that asks how large floating point numbers are.
    """

    def __init__(self, clamps: Callable[[torch.Tensor, Any, Any], None], compares: Callable[[str], None]) -> None:
        super().__init__()
        self._clamps, self._compares = clamps, compares

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _CLAMPS:
            given = dict(zip(("input", "min", "max"), args, strict=False)) | kwargs
            self._clamps(given["input"], given.get("min"), given.get("max"))
        elif _is_comparison(name, args, kwargs):
            self._compares(name)
        return func(*args, **kwargs)


def _is_comparison(name: str, args: Any, kwargs: Any) -> bool:
    given = [tensor for tensor in (*args, *kwargs.values()) if isinstance(tensor, torch.Tensor)]
    known = name in _COMPARISONS or name.removesuffix("_") in _COMPARISONS
    known = known or (name in ("max", "min") and len(given) > 1)  # of two tensors
    return known and any(tensor.is_floating_point() for tensor in given)


def why_bounded(module: Any, run: Callable[[], Any]) -> str | None:
    """None, or what in a module's code, or in `run()` of it, no trial on small rows shows."""
    found = sorted({name for name, _ in _sites_of(module, half=True)})
    with contextlib.suppress(Exception), Calls(lambda *_: found.append("clamp"), found.append):
        run()
    return f"its code calls {found[0]}: no trial shows what that does" if found else None


def why_not_shown(module: Any, half: bool) -> str | None:
    """None, or why no small input shows what a module's code does; clamps that it calls each time are left to `Clamps`."""
    found = sorted({name for name, tests in _sites_of(module, half) if name not in _CLAMPS or not _are_certain(tests)})
    return f"its code calls {found[0]}: no small input shows what that does" if found else None


def clamps_of(module: Any, half: bool) -> int:
    """How many clamps a module's code calls in each forward."""
    return sum(name in _CLAMPS for name, _ in _sites_of(module, half))


def _sites_of(module: Any, half: bool) -> list[tuple[str, tuple[str, ...]]]:
    """[(name, the tests of the branches around it)] of the thresholds in its code, in its methods and in the functions
    of their files that these call; without the branches for options that it or its configuration leaves out, or for float16.
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
