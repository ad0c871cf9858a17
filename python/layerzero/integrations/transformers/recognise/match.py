"""The language of patterns: a formula, written with the operators of Python, that a node of a graph may be.

    x, w, eps = any_node("x"), parameter("weight"), number("eps")
    RMS = x * call("rsqrt", call("mean", x**2) + eps) * w

    found = match(RMS, node)         # {"x": node, "weight": node, "eps": 1e-06}, or None

A name of `any_node` is the same node wherever it occurs; `number` matches a constant of the layer, or the given one;
`parameter` matches a tensor of a module. Sums and products match in any order and grouping. Casts are skipped.
"""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import torch

from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.nodes import Node

Found = dict[str, Any]
_CONSTANTS = ("constant", "tensor", "as_tensor", "scalar_tensor", "full")
_MANY = ("add", "mul")  # operands in any order


class Pattern:
    def __add__(self, other: Any) -> "Pattern":
        return call("add", self, other)

    def __mul__(self, other: Any) -> "Pattern":
        return call("mul", self, other)

    def __sub__(self, other: Any) -> "Pattern":
        return call("sub", self, other)

    def __truediv__(self, other: Any) -> "Pattern":
        return call("div", self, other)

    def __rtruediv__(self, other: Any) -> "Pattern":
        return call("div", other, self)

    def __pow__(self, other: Any) -> "Pattern":
        return call("pow", self, other)

    __radd__, __rmul__ = __add__, __mul__

    def found(self, value: Any, bound: Found) -> Iterator[Found]:
        """Yields the values of the names, for each way in which a node or plain value matches."""
        raise NotImplementedError


class _Named(Pattern):
    def __init__(self, name: str) -> None:
        self.name = name

    def same(self, a: Any, b: Any) -> bool:
        return a is b

    def is_one(self, value: Any) -> Any:
        raise NotImplementedError

    def found(self, value: Any, bound: Found) -> Iterator[Found]:
        one = self.is_one(value)
        if one is None or (self.name in bound and not self.same(bound[self.name], one)):
            return
        yield bound | {self.name: one}


class _Any(_Named):
    def is_one(self, value: Any) -> Any:
        return uncast(value) if isinstance(value, Node) else None


class _Parameter(_Named):
    def is_one(self, value: Any) -> Any:
        node = rows_of(value) if isinstance(value, Node) else None
        return node if node is not None and node.op == "parameter" else None


class _Number(_Named):
    def __init__(self, name: str, wanted: float | None) -> None:
        super().__init__(name)
        self.wanted = wanted

    def same(self, a: Any, b: Any) -> bool:
        return a == b

    def is_one(self, value: Any) -> Any:
        one = number_of(value)
        near = self.wanted is None or (one is not None and abs(one - self.wanted) <= 1e-6 * abs(self.wanted))
        return one if near else None


class _None(Pattern):
    """An argument that is left out."""

    def found(self, value: Any, bound: Found) -> Iterator[Found]:
        yield from [bound] if value is None else []


class _Call(Pattern):
    def __init__(self, op: str, operands: tuple[Any, ...]) -> None:
        self.op = op
        made = [
            each if isinstance(each, Pattern) else number("", each) if each is not None else _None()
            for each in operands
        ]
        inner = [
            each.operands if isinstance(each, _Call) and each.op == op and op in _MANY else [each] for each in made
        ]
        self.operands: list[Pattern] = [each for part in inner for each in part]

    def found(self, value: Any, bound: Found) -> Iterator[Found]:
        node = uncast(value) if isinstance(value, Node) else None
        if node is None or node.op != self.op or node.kwargs:
            return
        if self.op in _MANY:
            for operands in _expanded([node], self.op, len(self.operands)):
                for order in permutations(operands):
                    yield from _all_found(self.operands, order, bound)
        elif len(node.args) == len(self.operands):
            yield from _all_found(self.operands, node.args, bound)


def _all_found(patterns: Any, values: Any, bound: Found) -> Iterator[Found]:
    if not patterns:
        yield bound
        return
    for inner in patterns[0].found(values[0], bound):
        if "" in inner:
            inner = {name: one for name, one in inner.items() if name}
        yield from _all_found(patterns[1:], values[1:], inner)


def _expanded(operands: list[Any], op: str, count: int) -> Iterator[list[Any]]:
    """Yields the ways to write a nested sum or product with `count` operands."""
    if len(operands) == count:
        yield operands
        if count > 1:
            return
    if len(operands) >= count:
        return
    for index, each in enumerate(operands):
        node = uncast(each) if isinstance(each, Node) else None
        if node is not None and node.op == op and not node.kwargs and len(node.args) == 2:
            yield from _expanded([*operands[:index], *node.args, *operands[index + 1 :]], op, count)


def any_node(name: str) -> Pattern:
    """Matches any node."""
    return _Any(name)


def parameter(name: str) -> Pattern:
    """Matches a parameter or buffer of a module."""
    return _Parameter(name)


def number(name: str, wanted: float | None = None) -> Pattern:
    """Matches a constant; with `wanted` only that one, within rounding."""
    return _Number(name, wanted)


def call(op: str, *operands: Any) -> Pattern:
    """Matches a call of a function of torch with these operands; see `trace` for its name."""
    return _Call(op, operands)


def match(pattern: Pattern, node: Any) -> Found | None:
    """The values of a pattern's names if a node matches it, else None."""
    return next(pattern.found(node, {}), None)


def match_one(formulas: dict[str, list[Pattern]], node: Any) -> tuple[str, Found] | None:
    """(the key, the values of the names) of the first formula that a node matches."""
    ways = ((key, match(formula, node)) for key, each in formulas.items() for formula in each)
    return next(((key, found) for key, found in ways if found is not None), None)


def uncast(node: Any) -> Any:
    """The node before casts."""
    while node.op == "cast":
        node = node.args[0]
    return node


def number_of(value: Any) -> float | None:
    """The value of a number or of a constant with one element; None of anything else."""
    if type(value) in (int, float):
        return float(value)
    if not isinstance(value, Node):
        return None
    node = uncast(value)
    if node.op not in _CONSTANTS or node.inputs or not isinstance(node.value, torch.Tensor) or node.value.numel() != 1:
        return None
    return float(node.value)


def terms_of(node: Any, op: str = "add") -> list[Any]:
    """The operands of nested sums (or products), in their order."""
    node = rows_of(node)
    if node.op != op or node.kwargs or len(node.args) != 2 or not all(isinstance(arg, Node) for arg in node.args):
        return [node]
    return [term for arg in node.args for term in terms_of(arg, op)]


def factor_of(node: Any) -> tuple[float, Any]:
    """(f, x) of a node f * x; (1.0, the node) if it is no such product."""
    node = uncast(node)
    factor = 1.0
    while node.op in ("mul", "div") and not node.kwargs:
        left, right = node.args
        number_right, number_left = number_of(right), number_of(left) if node.op == "mul" else None
        if number_right is not None and isinstance(left, Node):
            factor, node = factor * (number_right if node.op == "mul" else 1 / number_right), uncast(left)
        elif number_left is not None and isinstance(right, Node):
            factor, node = factor * number_left, uncast(right)
        else:
            break
    return factor, node
