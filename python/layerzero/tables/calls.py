"""What a table is made of: calls whose sizes are names of buckets, and the steps of a model's program."""

import ast
import json
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts, resolve_call
from layerzero.contracts.axes import Description, with_contract_axes
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.inspection.call_text import read_call

Sizes = Mapping[str, int]
EXAMPLE = "for example: attention --query bf16[batch,seq_len,32,128] --key ... --causal true"
_SIZES = re.compile(r"\[([^\]]*)\]")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def size_of(text: str, sizes: Sizes) -> int:
    """Returns the value of "batch * seq_len" for sizes of buckets; + - * // are known."""

    def value(node: ast.AST) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id in sizes:
            return sizes[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, ZeroDivisionError, RecursionError):
        known = ", ".join(sizes) or "none"
        raise InvalidRequestError(
            "size", f"numbers and names of buckets ({known}) with + - * //", repr(text), EXAMPLE
        ) from None


def names_in(text: str) -> set[str]:
    """Returns the names of buckets in the sizes of a call."""
    return {name for inner in _SIZES.findall(text) for name in re.findall(r"[A-Za-z_]\w*", inner)}


def with_sizes(text: str, sizes: Sizes) -> str:
    """Returns the text of a call with numbers in place of names of buckets."""
    return _SIZES.sub(
        lambda m: "[" + ",".join(str(size_of(part, sizes)) for part in m[1].split(",") if part.strip()) + "]", text
    )


class Call:
    """A call with sizes by name: `at(sizes)` is the text of one call, `explain(sizes)` its selection report as data.

    count: how often it runs in one pass of a model, or of the workload.
    """

    def __init__(self, text: str, count: int = 1) -> None:
        self.text, self.count, self.names = text.strip(), count, names_in(text)
        self.phase = ""
        self.device: str | None = None  # that it ran on, if it was recorded

    def at(self, sizes: Sizes) -> str:
        return with_sizes(self.text, sizes)

    def explain(self, sizes: Sizes, device: str | None, capturing: bool) -> dict[str, Any]:
        function, arguments = self.arguments(sizes)
        args, kwargs = with_contract_axes(contracts()[function.__name__], (), arguments)
        return json.loads(_layerzero.explain(function, args, kwargs, device, True, capturing))

    def arguments(self, sizes: Sizes) -> tuple[Any, dict[str, Any]]:
        """Returns the operation's function and the arguments by name, with descriptions in place of tensors."""
        operation, *words = shlex.split(self.at(sizes))
        name, arguments = read_call(operation, words)
        return resolve_call(name, (), arguments)

    def described(self, sizes: Sizes, report: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the call of a report as layerzero.jit.examples makes it; None: it cannot be made by itself."""
        _, arguments = self.arguments(sizes)
        _, arguments = with_contract_axes(contracts()[report["name"]], (), arguments)
        tensors = {name: value._asdict() for name, value in arguments.items() if isinstance(value, Description)}
        scalars = {
            name: value
            for name, value in arguments.items()
            if name not in tensors and name not in ("layout", "kernel") and value is not None
        }
        call = {"operation": report["name"], "device": report["device"]["name"], "tensors": tensors, "scalars": scalars}
        layout = report.get("layout")
        return call if layout is None else call | {"layout": layout["name"]}


class Step(Call):
    """A step of a model's program; sizes: batch and seq_len. In prefill all positions are new, in decode one is."""

    def __init__(self, program: Any, index: int, phase: str, operation: str, count: int) -> None:
        self._program, self._index, self.phase = program, index, phase
        self.text, self.count, self.names = f"{phase} {operation} (step {index})", count, {"batch", "seq_len"}
        self.device = None

    def at(self, sizes: Sizes) -> str:
        return f"{self.text} batch={sizes['batch']} seq_len={sizes['seq_len']}"

    def explain(self, sizes: Sizes, device: str | None, capturing: bool) -> dict[str, Any]:
        return self._program.explain(self._index, *run_sizes(self.phase, sizes))

    def described(self, sizes: Sizes, report: dict[str, Any]) -> dict[str, Any] | None:
        return None  # its tensors are in the program's memory


class Recorded(Call):
    """A class of calls that a running program made, from a workload; its sizes are those of the recording."""

    def __init__(self, entry: Any) -> None:
        super().__init__(f"{entry.name} {entry.line}", entry.count)
        self.entry, self.names, self.device = entry, set[str](), entry.device

    def at(self, sizes: Sizes) -> str:
        return self.text

    def explain(self, sizes: Sizes, device: str | None, capturing: bool) -> dict[str, Any]:
        function, arguments = self.arguments(sizes)
        in_graph = capturing or self.entry.execution == "graph"
        return json.loads(_layerzero.explain(function, (), arguments, device or self.device, True, in_graph))

    def arguments(self, sizes: Sizes) -> tuple[Any, dict[str, Any]]:
        from layerzero.tuning.draw import described

        return resolve_call(self.entry.name, (), described(self.entry.name, self.entry.line))


def recorded_calls(workload: Any, device: str | None) -> list[Recorded]:
    """Returns the calls of a workload. InvalidRequestError: it has none, or those of several devices and `device` is not given."""
    devices = sorted({entry.device for entry in workload.calls})
    if not devices or (len(devices) > 1 and device is None):
        got, fix = (
            ", ".join(devices) or "no calls",
            "record a program while it serves" if not devices else "pass device=",
        )
        raise InvalidRequestError("workload", "calls of one device", got, fix)
    kept = [entry for entry in workload.calls if device is None or len(devices) == 1 or entry.device == device]
    if not kept:
        raise InvalidRequestError("device", f"one of {', '.join(devices)}", repr(device))
    return [Recorded(entry) for entry in kept]


def run_sizes(phase: str, sizes: Sizes) -> tuple[int, int, int]:
    """Returns batch, length and positions before of a run of a model."""
    length = sizes["seq_len"]
    return (sizes["batch"], length, 0) if phase == "prefill" else (sizes["batch"], 1, max(length - 1, 0))


def calls_of(operations: str | Iterable[str]) -> list[Call]:
    """Returns the calls of texts, one per line; empty lines and those that begin with # are skipped. A text that begins
    with "12 x " is a call that runs 12 times."""
    texts = [operations] if isinstance(operations, str) else list(operations)
    for text in texts:
        if not isinstance(text, str):
            raise WrongTypeError("operations", "calls as text", type(text).__name__, EXAMPLE)
    found = []
    for line in (line.strip() for text in texts for line in text.splitlines()):
        if not line or line.startswith("#"):
            continue
        times = re.match(r"(\d+) x ", line)
        found.append(Call(line[times.end() :] if times else line, int(times[1]) if times else 1))
    if not found:
        raise InvalidRequestError("operations", "at least one call", "none", EXAMPLE)
    return found


def steps_of(plan: Any, sizes: Sizes) -> list[list[Step]]:
    """Returns the steps of a model's program by phase, in order of first use; equal ones are one with its count.

    `plan`: what lz.compile or lz.dry_run returned.
    """
    phases = []
    for phase in ("prefill", "decode"):
        run = run_sizes(phase, sizes)
        first: dict[str, Step] = {}
        for index, step in enumerate(plan.steps(*run)):
            report = plan.explain(index, *run)
            same = json.dumps([report["operation"], report["key"], report["options"], report["class"]], sort_keys=True)
            if same in first:
                first[same].count += 1
            else:
                first[same] = Step(plan, index, phase, step["operation"], 1)
        phases.append(list(first.values()))
    return phases
