"""The check of a kernel's results before it is timed: against the operation's reference in FP64, on every row relative to
its norm. Without a reference that can be trusted, results are clustered, and only the majority may win."""

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.contracts import contracts, is_seeded
from layerzero.torch.references import call_reference

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # relative L2 norm
FP64_BYTES = 3 << 30  # larger arguments are compared with the reference in their own dtypes
EXACT_SHARE = 0.999  # of integers, which ties may change


def _wide(value: Any) -> Any:
    floats = (torch.float16, torch.bfloat16, torch.float32)
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in floats else value


def results_of(name: str, arguments: dict[str, Any], call: Callable[[dict[str, Any]], Any]) -> list[torch.Tensor]:
    """Calls with copies of the tensors that the operation writes; returns its outputs, then these."""
    written = [p["name"] for p in contracts()[name]["params"] if p.get("mutated")]
    given = arguments | {n: arguments[n].clone() for n in written if arguments.get(n) is not None}
    result = call(given)
    outputs = result if isinstance(result, tuple | list) else (result,)
    return [t for t in outputs if isinstance(t, torch.Tensor)] + [given[n] for n in written if given.get(n) is not None]


def reference(name: str, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the operation's reference results: in FP64, if the arguments are not too large for it."""

    def call(given: dict[str, Any]) -> Any:
        given = dict(given)
        return call_reference(name, given, given.pop("layout", None))

    size = sum(t.numel() * 8 for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_floating_point())
    if size <= FP64_BYTES:
        with contextlib.suppress(Exception):  # a reference of stored formats takes them as they are
            return results_of(name, {key: _wide(value) for key, value in arguments.items()}, call)
    return results_of(name, arguments, call)


def trusted_reference(name: str, arguments: dict[str, Any]) -> list[torch.Tensor] | None:
    """Returns reference(), or None if the reference does not take the call or its results are not numbers."""
    try:
        found = reference(name, arguments)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if "CUDA error" in str(error) or isinstance(error, torch.OutOfMemoryError):
            raise
        return None
    return None if any(t.is_floating_point() and t.isnan().any().item() for t in found) else found


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Returns the largest distance of a row from the reference's relative to that row, or the share of integers that
    differ in a table of indices."""
    if got.shape != wanted.shape:
        return math.inf
    if got.dtype in (torch.int32, torch.int64, torch.bool):
        return 0.0 if (got == wanted).float().mean().item() >= EXACT_SHARE else math.inf
    last = got.shape[-1] if got.dim() else 1
    a, b = (
        t.float().reshape(-1, last).double() if t.dtype != torch.float64 else t.reshape(-1, last) for t in (got, wanted)
    )
    same = a == b  # infinities too
    off = torch.where(same, 0.0, a - b).norm(dim=-1)
    norm = torch.where(b.isfinite(), b, 0.0).norm(dim=-1)
    worst = (off / norm.clamp(min=1e-3 * norm.max().item() + 1e-30)).max().item()
    return math.inf if math.isnan(worst) else worst


def allowed(got: torch.Tensor, dtype: torch.dtype) -> float:
    """Returns the largest difference() of a right result; `dtype`: of the call's first tensor."""
    bound = max(TOLERANCE.get(dtype, 3e-2), 1e-3)
    stored = got.dtype not in TOLERANCE and got.dtype not in (torch.int32, torch.int64, torch.bool)
    return max(bound, 3e-2) if stored else max(bound, TOLERANCE.get(got.dtype, 0))


def check(name: str, results: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> str:
    """Returns what is wrong with a kernel's results; empty: nothing. Sampled ids are in the vocabulary, no more is
    known of them here: conformance tests their distribution."""
    if is_seeded(contracts()[name]):
        return ""
    if len(results) != len(wanted):
        return f"{len(results)} results, wanted {len(wanted)}"
    for got, right in zip(results, wanted, strict=True):
        if not (off := difference(got, right)) <= (bound := allowed(got, dtype)):
            return f"off by {off:.3g}, allowed {bound:.3g}"
    return ""


def error_of(results: list[torch.Tensor], wanted: list[torch.Tensor], dtype: torch.dtype) -> tuple[float, float]:
    """Returns the largest difference() of the results and what is allowed, for the columns of a record."""
    pairs = [(difference(got, right), allowed(got, dtype)) for got, right in zip(results, wanted, strict=True)]
    return max(pairs, key=lambda pair: pair[0], default=(0.0, 0.0))


def majority(results: dict[str, list[torch.Tensor]], dtype: torch.dtype) -> tuple[set[str], dict[str, str]]:
    """Returns the kernels whose results agree with those of most others, and what is said of the rest.

    There has to be a majority: more than half of the kernels and at least two. Otherwise none may win.
    """
    names = list(results)

    def off(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
        if len(a) != len(b):
            return math.inf
        return max((difference(x, y) / (2 * allowed(x, dtype)) for x, y in zip(a, b, strict=True)), default=0.0)

    distances = [
        0.0 if a == b else max(off(results[a], results[b]), off(results[b], results[a])) for a in names for b in names
    ]
    agree = {names[i] for i in _layerzero.majority_of(distances, len(names), 1.0)}
    why = "differs from most kernels; there is no reference" if agree else "no majority agrees; there is no reference"
    return agree, {name: why for name in names if name not in agree}
