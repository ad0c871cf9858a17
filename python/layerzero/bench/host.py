"""Host cost of operations compared with the torch expressions that they replace.

Each round times LayerZero's call, torch's and torch's again; a round's ratio pairs adjacent timings. The results are
medians over rounds. `aa_spread` is the median distance of torch / torch from 1: the noise of the method.
"""

import functools
import statistics
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import layerzero as lz
from layerzero.inspection.report import SelectionReport

ROUND_SECONDS = 0.002  # duration of one timing within a round
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # between the results of both sides


@dataclass(frozen=True)
class Case:
    """One call as source text: LayerZero's and the equivalent torch expression."""

    name: str
    shapes: str
    ours: str
    theirs: str
    values: dict[str, Any]

    def names(self) -> dict[str, Any]:
        return {"lz": lz, "torch": torch, "F": F, **self.values}

    def explain(self) -> SelectionReport:
        text = self.ours.replace(f"lz.{self.name}(", f"lz.explain({self.name!r}, ", 1)
        return eval(text, self.names())


def _cases(device: str) -> Iterator[Case]:
    """Yields calls whose host time matters: one token and small batches, of a 135M model on a CPU, of a 1B model on CUDA."""
    cuda = device == "cuda"
    hidden, inner, vocab = (2048, 8192, 128256) if cuda else (576, 1536, 49152)
    norms = ((32, 4096), (1, 2048)) if cuda else ((1, 64), (1, 576), (32, 576))
    attention = ((8, 8, 1, 16), (8, 8, 1, 512), (9, 3, 1, 512), (9, 3, 64, 64))
    r = functools.partial(torch.randn, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    for rows, width in norms:
        shapes = f"({rows},{width})"
        v = {"x": r(rows, width), "y": r(rows, width), "w": r(width)}
        plain = f"F.rms_norm(x, ({width},), w, 1e-6)"
        yield Case("rms_norm", shapes, "lz.rms_norm(x, w, 1e-6)", plain, v)
        yield Case("layer_norm", shapes, f"lz.layer_norm(x, {width}, w)", f"F.layer_norm(x, ({width},), w)", v)
        fused = f"s = x + y; F.rms_norm(s, ({width},), w, 1e-6)"
        yield Case("fused_add_rms_norm", shapes, "lz.fused_add_rms_norm(x, y, w, 1e-6)", fused, v)
    for heads, kv_heads, s_q, s_kv in ((32, 8, 1, 512), (32, 8, 64, 64)) if cuda else attention:
        shapes = f"(1,{heads},{s_q},64), {kv_heads} KV heads, {s_kv} keys"
        v = {"q": r(1, heads, s_q, 64), "k": r(1, kv_heads, s_kv, 64), "v": r(1, kv_heads, s_kv, 64)}
        options = f"is_causal={s_q > 1}" + (", enable_gqa=True" if heads != kv_heads else "")
        theirs = f"F.scaled_dot_product_attention(q, k, v, {options})"
        yield Case("attention", shapes, "lz.attention(q, k, v, layout='BHSD')", theirs, v)
    if cuda:
        v = {"q": r(1, 1, 32, 64), "c": r(1, 1, 64), "s": r(1, 1, 64)}
        turned = "q * c + torch.cat((-q[..., 32:], q[..., :32]), -1) * s"
        yield Case("rope", "(1,1,32,64)", "lz.rope(q, c, s, layout='BSHD')", turned, v)
    v = {"x": r(1, hidden), "w": r(hidden, hidden) / hidden**0.5, "g": r(1, inner), "u": r(1, inner)}
    v |= {"gu": r(1, 2 * inner), "ids": torch.tensor([[5]], device=device), "table": r(49152, 64)}
    v["logits"] = r(1, vocab).float()
    yield Case("linear", f"(1,{hidden}) x ({hidden},{hidden})", "lz.linear(x, w)", "F.linear(x, w)", v)
    yield Case("swiglu", f"(1,{inner})", "lz.swiglu(g, u)", "F.silu(g) * u", v)
    yield Case("geglu", f"(1,{inner})", "lz.geglu(g, u)", "F.gelu(g) * u", v)
    halves = f"F.silu(gu[..., :{inner}]) * gu[..., {inner}:]"
    yield Case("silu_and_mul", f"(1,{2 * inner})", "lz.silu_and_mul(gu)", halves, v)
    yield Case("embedding", "1 of 49152", "lz.embedding(ids, table)", "F.embedding(ids, table)", v)
    yield Case("softmax", f"(1,{vocab})", "lz.softmax(logits)", "torch.softmax(logits, -1)", v)


def host_costs(
    operation: str | None = None, rounds: int = 41, device: str = "cpu", on_step: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Returns {"torch", "device", "threads", "rounds", "results": [{"operation", "kernel_id", "kind", "lz_ns", ...}]}."""
    torch.manual_seed(0)
    results: list[dict[str, Any]] = []
    interrupted = {}
    try:
        with torch.no_grad():
            for case in _cases(device):
                if operation in (None, case.name):
                    if on_step:
                        on_step(f"{case.name} {case.shapes}")
                    results += _measure_both(case, rounds)
    except KeyboardInterrupt:  # keep what was measured
        if not results:
            raise
        interrupted = {"interrupted": True}
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    about = {"torch": torch.__version__, "device": name, "threads": torch.get_num_threads(), "rounds": rounds}
    return {**about, "results": results, **interrupted}


def _measure_both(case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    """Measures the call with the chosen kernel, if that is not torch's, and with torch's best kernel."""
    report = case.explain()
    if not report.kernel_id.startswith("torch."):
        yield _measure(case, report, "own", rounds)
    for candidate in sorted(report.candidates, key=lambda c: -c.score):
        if candidate.admissible and candidate.source == "torch":
            lz.lock(report.operation, candidate.kernel_id)
            try:
                yield _measure(case, case.explain(), "torch", rounds)
            finally:
                lz.unlock(report.operation)
            return


def _measure(case: Case, report: SelectionReport, kind: str, rounds: int) -> dict[str, Any]:
    _check(case)
    # The device's queue is empty when a timing starts.
    idle = "torch.cuda.synchronize()" if next(iter(case.values.values())).is_cuda else "pass"
    ours, theirs = (timeit.Timer(text, idle, globals=case.names()) for text in (case.ours, case.theirs))
    theirs.timeit(50)
    loops = max(1, int(ROUND_SECONDS / (theirs.timeit(50) / 50)))
    samples = []
    for number in range(rounds):
        order = [ours, theirs, theirs]
        times = [timer.timeit(loops) / loops for timer in (order if number % 2 else order[::-1])]
        samples.append(times if number % 2 else times[::-1])
    return {
        "operation": report.operation,
        "name": case.name,
        "call": case.shapes,
        "kernel_id": report.kernel_id,
        "kind": kind,
        "lz_ns": statistics.median(a for a, _, _ in samples) * 1e9,
        "torch_ns": statistics.median(b for _, b, _ in samples) * 1e9,
        "ratio": statistics.median(a / b for a, b, _ in samples),
        "aa_spread": statistics.median(abs(c / b - 1) for _, b, c in samples),
    }


def _check(case: Case) -> None:
    """Asserts that both sides agree, before anything is timed."""
    *before, last = case.theirs.split("; ")
    names = case.names()
    for statement in before:
        exec(statement, names)
    theirs, ours = eval(last, names), eval(case.ours, case.names())
    ours = ours[0] if isinstance(ours, tuple) else ours
    tolerance = TOLERANCE[theirs.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
