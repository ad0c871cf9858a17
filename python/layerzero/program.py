"""Programs: fixed lists of operations that C++ runs over one arena, without Python in between.

A value is an intermediate result of all rows of a run (every position of every sequence): see src/program/program.h. A
program is immutable; any number of threads may run it, each on its own tensors.

    make = ProgramBuilder()
    x = make.input()
    (y,) = make.add("rms_norm", [Rows(make.rows(64, "float32"), (64,))], input=x, weight=make.weight(weight), eps=1e-6)
"""

import dataclasses
import functools
import json
import math
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.host.policy import policy_in_force


@dataclasses.dataclass(frozen=True)
class Rows:
    """How a step reads or writes a value: elements from `column` on, of shape `axes`; of a cache also `past` rows.

    step: stride of the first axis in elements, 0 if it is contiguous. packed: batch and length are one axis, as in
    operations on packed sequences.
    """

    value: int
    axes: tuple[int, ...]
    column: int = 0
    past: bool = False
    step: int = 0
    packed: bool = False

    def operand(self) -> tuple[int, int, tuple[int, ...], bool, int, bool]:
        return self.value, self.column, self.axes, self.past, self.step, self.packed

    @property
    def size(self) -> int:
        return math.prod(self.axes)


@functools.cache
def _tensors_of(name: str) -> tuple[str, ...]:
    return tuple(p["name"] for p in contracts()[name]["params"] if p["kind"] == "tensor")


def _operand(given: Any) -> Any:
    return given.operand() if isinstance(given, Rows) else given


class ProgramBuilder:
    """Collects values and steps; `build` returns the program."""

    def __init__(self) -> None:
        self._values: list[tuple[Any, ...]] = []
        self._steps: list[tuple[Any, ...]] = []

    def _value(self, *what: Any) -> int:
        self._values.append(what)
        return len(self._values) - 1

    def weight(self, tensor: Any) -> int | None:
        """Adds a fixed tensor; None stays None."""
        return None if tensor is None else self._value("weight", tensor)

    def input(self) -> int:
        return self._value("input")

    def rows(self, width: int, dtype: str) -> int:
        return self._value("rows", width, dtype)

    def output(self, width: int, dtype: str) -> int:
        return self._value("output", width, dtype)

    def cache(self, dtype: str) -> int:
        return self._value("cache", 0, dtype)

    def add(self, operation: str, outputs: list[Rows | None], **arguments: Any) -> None:
        """Adds one call; arguments by the operation's names: values and Rows for tensors, else numbers and names."""
        tensors = _tensors_of(operation)
        inputs = [_operand(arguments.pop(name, None)) for name in tensors]
        declared = contracts()[operation]["outputs"]
        written = [_operand(o) for o in outputs] + [None] * (len(declared) - len(outputs))
        self._steps.append((_layerzero.ops[operation], inputs, arguments, written))

    def build(self) -> "Program":
        """Returns the program. With the policy's plan_mode an addition and the norm that follows are one step where measured
        times say that this costs less."""
        if policy_in_force()["keys"]["plan_mode"]["value"]:
            from layerzero.tables.joint_steps import join_steps

            self._steps = join_steps(self._steps, self._values)
        return Program(_layerzero.program(self._values, self._steps), [step[0].__name__ for step in self._steps])


class Program:
    """A built program. Its calls take tuples of tensors, None for absent ones.

    inputs: in the order of input(), written if an operation writes its operands. outputs: (batch, length, width) in the
    order of output(), written. caches: (batch, capacity, heads, head_dim) in the order of cache(), of any strides, rows
    [past, past + length) written. Raises InvalidRequestError for tensors that do not fit, and the errors of the
    operations.
    """

    def __init__(self, handle: Any, operations: list[str]) -> None:
        self._handle = handle
        self.operations = operations

    def run(self, inputs: Any, outputs: Any, caches: Any = (), past: int = 0) -> None:
        _layerzero.run_program(self._handle, inputs, outputs, caches, past)

    def arena_bytes(self, rows: int) -> int:
        """Returns the arena's bytes for a run of `rows` rows (batch x length), without kernels' workspaces."""
        return rows * sum(_layerzero.program_row_bytes(self._handle))

    def kernels(self, inputs: Any, outputs: Any, caches: Any = (), past: int = 0) -> list[str]:
        """Returns the id of each step's kernel in such a run."""
        return _layerzero.program_kernels(self._handle, inputs, outputs, caches, past)

    def explain(self, step: int, inputs: Any, outputs: Any, caches: Any = (), past: int = 0) -> dict[str, Any]:
        """Returns the selection report of one step in such a run."""
        return json.loads(_layerzero.explain_program(self._handle, inputs, outputs, caches, past, step))
