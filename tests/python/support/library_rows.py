"""Rows of library backends over stand-ins: which cases a row serves, and what its adapter makes of them."""

import contextlib
import sys

import torch
from adapter_calls import values_of
from conformance_calls import engine_accepts, problems
from layerzero.backends import descriptor_of, proof
from layerzero.contracts import contracts
from operation_cases import cases

SCALES = ("scale", "sm_scale")


def rows(backend, operations=None):
    """(operation's name, row) of each, one operation a row."""
    names = {o["id"]: c["name"] for c in contracts().values() for o in c["operations"]}
    descriptor = descriptor_of(backend)
    found = [(names[o], row) for o, kernels in descriptor["ops"].items() for row in kernels]
    return [(name, row) for name, row in found if operations is None or name in operations]


@contextlib.contextmanager
def installed(modules, backends):
    """The stand-ins as the libraries of backends, whose adapters are imported anew and forgotten afterwards."""
    folders = tuple(f"layerzero.backends.{backend}." for backend in backends)
    kept = {n: m for n, m in sys.modules.items() if n in modules or n.startswith(folders)}
    for name in kept:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in [n for n in sys.modules if n in modules or n.startswith(folders)]:
            del sys.modules[name]
        sys.modules.update(kept)


def adapter_of(row):
    return proof.load(row["adapter"])


def _fits(name, row, arguments):
    optional = {p["name"] for p in contracts()[name]["params"] if p.get("optional") and p["kind"] == "tensor"}
    if optional & set(arguments) - set(row.get("accepts", ())):
        return False
    needed = [c["field"].removesuffix(".given") for c in row["constraints"] if c["field"].endswith(".given")]
    return all(name in arguments for name in needed) and not {"attn_mask", "dropout_p"} & set(arguments)


def served(name, row):
    """(line, arguments, values) of the cases that a row's arguments admit, without NaN, empty tensors and mixed dtypes."""
    for line, arguments in cases(name):
        tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor)]
        values = values_of(name, arguments, (*row.get("accepts", ()), "causal"))
        mixed = len({t.dtype for t in tensors if t.ndim > 2}) > 1 or any(
            t.dtype.itemsize == 1 or t.dtype == torch.float64 for t in tensors
        )
        special = any(text in line for text in ("nan", "inf")) or any(t.numel() == 0 for t in tensors)
        if values is None or mixed or special or not _fits(name, row, arguments) or not engine_accepts(name, line):
            continue
        names = [p["name"] for p in contracts()[name]["params"]]
        for at, scale in enumerate(names):
            if scale in SCALES and arguments.get(scale) is None:
                widths = [t.shape[-1] for n, t in arguments.items() if n in ("q_nope", "q_pe")] or [values[0].shape[-1]]
                values[at] = sum(widths) ** -0.5
            if scale == "causal" and values[at] is None:
                values[at] = True
        yield line, arguments, values


def failures_of(row, name, line, found):
    return [f"{row['kernel_id']}: {line}\n    {text}" for text in problems(name, line, found)]
