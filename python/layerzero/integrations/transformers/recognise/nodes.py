"""The nodes of a graph, see `trace`, and the walk over those that a node depends on."""

from collections.abc import Callable, Iterator
from typing import Any

import torch


class Node:
    """A call, or with `op` "input", "parameter" or "constant" a tensor that was there before; `name` says which one."""

    def __init__(
        self,
        op: str,
        value: Any,
        args: Any = (),
        kwargs: Any = None,
        name: str = "",
        module: str = "",
        call: Any = None,
    ) -> None:
        self.op, self.value, self.args, self.kwargs = op, value, args, kwargs or {}
        self.name, self.module = name, module
        self.widened = False  # whether the code casts it to float32, which it has already
        self.call = call  # (the function, its arguments), to repeat the call with other numbers

    @property
    def inputs(self) -> "list[Node]":
        return [*nodes_in((self.args, self.kwargs))]

    @property
    def place(self) -> tuple[str, str]:
        """(the path of its module, its name there) of a parameter."""
        path, _, key = self.name.rpartition(".")
        return path, key

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.value.shape)) if isinstance(self.value, torch.Tensor) else ""
        return f"{self.name or self.op}[{shape}]{f' in {self.module}' if self.module else ''}"


def sibling(name: str, key: str) -> str:
    """The name of another tensor of the module that has the tensor of a name."""
    path, dot, _ = name.rpartition(".")
    return f"{path}{dot}{key}"


def below(node: Node, enters: Callable[[Node], bool] = lambda _: True) -> Iterator[Node]:
    """Yields a node and those that it depends on, each once. The walk goes on through the nodes that `enters` accepts."""
    todo, done = [node], set()
    while todo:
        each = todo.pop()
        if id(each) not in done:
            done.add(id(each))
            yield each
            todo += each.inputs if enters(each) else []


def named(names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name. names: of those that it passes by position."""
    return dict(zip(names, args, strict=False)) | kwargs


def nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from nodes_in(each)
    elif isinstance(value, dict):
        yield from nodes_in([*value.values()])
