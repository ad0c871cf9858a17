"""The conformance cases of every operation as torch calls: what tests walk over, so that later operations are covered.

A case is a line of tests/ops/<path>.cases, read by the engine's own parser; its tensors have the case's memory, strides and
offset. Nothing here names an operation.
"""

import functools
from pathlib import Path

import torch
from layerzero.bench.cases import arguments_of
from layerzero.contracts import contracts
from layerzero.errors import InvalidRequestError

ROOT = Path(__file__).resolve().parents[3]
NAMES = sorted(contracts())


def lines(name, refused=False):
    """The lines of an operation that are to be served, or those that are to be refused."""
    path = ROOT / "tests/ops" / f"{contracts()[name]['path']}.cases"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = [line.strip() for line in text.splitlines()]
    return [line for line in found if line and not line.startswith("#") and line.startswith("refuse ") == refused]


def cases(name, refused=False):
    """(line, arguments) of each; without those that the parser refuses already (a choice that there is not)."""
    found = []
    for line in lines(name, refused):
        try:
            found.append((line, arguments_of(name, line)))
        except InvalidRequestError:
            if not refused:
                raise
    return found


def tensors_of(arguments):
    return {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}


@functools.cache
def lines_of_kinds(name, largest):
    """Lines of cases that differ in what is given, one of each kind."""
    seen = {}
    for line, arguments in cases(name):
        sizes = [t.numel() for t in tensors_of(arguments).values()]
        if sum(sizes) < largest:
            seen.setdefault((tuple(sorted(arguments)), 0 in sizes, arguments.get("layout")), line)
    return list(seen.values())


def few(name, count=None, largest=20000):
    """Cases that differ in what is given, one of each kind: optional arguments, layouts, outputs, empty tensors."""
    return [(line, arguments_of(name, line)) for line in lines_of_kinds(name, largest)[:count]]


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def same(got, want):
    for a, b in zip(as_tuple(got), as_tuple(want), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def copied(arguments):
    """The same call on memory of its own, strides kept where they name every element once: for tensors that are written."""
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
