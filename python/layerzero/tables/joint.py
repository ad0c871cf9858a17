"""Joint plans (the policy's plan_mode): where one operation does the work of several neighbors, the cheaper of the two.

Costs are microseconds of measured records; a kernel that was not measured has no cost, and what it is part of stays apart
with that as the reason. The conversions that a plan makes before a kernel count as the share of the call's bytes that they
read and write; packing a weight counts once for `expected_calls`. A chain is divided by dynamic programming, and chains of
equal signature (operations, sizes, dtypes, options) are solved once.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from layerzero.tables.calls import Call

Report = Mapping[str, Any]
EACH_TRANSFORM, COPIED_SHARE = 5, 90  # src/pipeline/score.cpp: points of a copied tensor, and of all bytes of the call


@dataclasses.dataclass(frozen=True)
class Rule:
    """Neighbors that another operation replaces. call(reports): that operation's call as text, or None with the reason."""

    parts: tuple[str, ...]  # ids; "activation" is every gated activation
    joined: str
    call: Callable[[Sequence[Report]], tuple[str | None, str]]
    packs: bool = False  # its weight is packed once


def _sizes(report: Report, *names: str) -> list[int] | None:
    try:
        return [int(report["key"][name]) for name in names]
    except KeyError:
        return None


def _add_norm(flat: str, extra: str) -> Callable[[Sequence[Report]], tuple[str | None, str]]:
    def call(reports: Sequence[Report]) -> tuple[str | None, str]:
        add, norm = reports
        if add["options"].get("function", "add") != "add":
            return None, "the first operation is no addition"
        shape = _sizes(norm, "...", "hidden")
        if shape is None or "dtype" not in norm["key"]:
            return None, "the sizes of the norm are not known"
        dtype, (rows, hidden) = norm["key"]["dtype"], shape
        given = [f"--{name} {dtype}[{hidden}]" for name in ("weight", "bias") if name in norm["options"]]
        tensors = f"--input {dtype}[{rows},{hidden}] --residual {dtype}[{rows},{hidden}]"
        return " ".join([flat, tensors, *given, extra]).strip(), ""

    return call


def _mlp(reports: Sequence[Report]) -> tuple[str | None, str]:
    first, activation, second = reports
    one, two = _sizes(first, "rows", "n", "k"), _sizes(second, "rows", "n", "k")
    if one is None or two is None or "bias" in first["options"] or "bias" in second["options"]:
        return None, "the products have biases, or sizes that are not known"
    if one[0] != two[0] or one[1] != 2 * two[2]:
        return None, "gate and up are not one product that is twice as wide as the next one"
    kind = {"activation.geglu": "gelu", "activation.gated": activation["options"].get("activation", "silu")}
    dtype = first["key"]["dtype"]
    tensors = f"--input {dtype}[{one[0]},{one[2]}] --gate-weight {dtype}[{one[1]},{one[2]}]"
    down = f"--down-weight {dtype}[{two[1]},{two[2]}] --activation {kind.get(activation['operation'], 'silu')}"
    return f"fused_mlp {tensors} {down}", ""


def _panels(reports: Sequence[Report]) -> tuple[str | None, str]:
    shape = _sizes(reports[0], "rows", "n", "k")
    if shape is None or shape[1] % 64 or shape[2] % 32:
        return None, "panels need outputs in multiples of 64 and inputs in multiples of 32"
    dtype, (rows, n, k) = reports[0]["key"]["dtype"], shape
    bias = f" --bias {dtype}[{n}]" if "bias" in reports[0]["options"] else ""
    return f"linear_panels --input {dtype}[{rows},{k}] --panels {dtype}[{n // 64},{k},64]{bias}", ""


def _none(reports: Sequence[Report]) -> tuple[str | None, str]:
    return None, f"no operation does both {reports[0]['operation']} and {reports[1]['operation']}"


RULES = (
    Rule(("elementwise.binary", "norm.rms"), "norm.rms.residual", _add_norm("fused_add_rms_norm", "")),
    Rule(("elementwise.binary", "norm.layer"), "norm.layer.residual", _add_norm("fused_add_layer_norm", "")),
    Rule(("mlp.linear", "activation", "mlp.linear"), "mlp.fused", _mlp),
    Rule(("mlp.linear",), "mlp.linear.panels", _panels, packs=True),
    Rule(("posenc.rope", "attention"), "", _none),
)


def _fits(rule: Rule, operations: Sequence[str]) -> bool:
    return len(operations) == len(rule.parts) and all(
        operation == part or operation.startswith(f"{part}.")
        for operation, part in zip(operations, rule.parts, strict=True)
    )


def cost_of(report: Report) -> float | None:
    """Returns the microseconds of a call: of the chosen kernel, with its plan's conversions; None: it was not measured."""
    times = {c["kernel_id"]: c.get("measured_us") for c in report["candidates"]}
    us = times.get(report["kernel_id"])
    if us is None:
        return None
    transforms = report["plan"]["transforms"]
    share = (report["plan"]["transform_cost_total"] - EACH_TRANSFORM * len(transforms)) / COPIED_SHARE
    return us * (1 + 2 * max(share, 0.0))


def signature_of(reports: Sequence[Report]) -> str:
    """Returns the digest of a block: equal for chains of equal operations, sizes, dtypes and options."""
    text = json.dumps([[r["operation"], r["key"], r["options"]] for r in reports], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def join(
    chain: Sequence[Call],
    buckets: Mapping[str, Sequence[int]],
    device: str | None,
    capturing: bool,
    expected_calls: int,
) -> list[dict[str, Any]]:
    """Returns what was decided about neighbors of a chain, for the end of each bucket: {"bucket", "block", "parts",
    "joined", "kernel_id", "call", "decision": join | apart | refused, "us_apart", "us_joined", "reason", "text"}."""
    used = {name for call in chain for name in call.names}
    names = [name for name in buckets if name in used]
    known: dict[str, list[dict[str, Any]]] = {}
    found = []
    for corner in itertools.product(*(buckets[name] for name in names)):
        bucket = dict(zip(names, corner, strict=True))
        reports = [call.explain(bucket, device, capturing) for call in chain]
        block = signature_of(reports)
        if block not in known:
            ask = functools.partial(_explain, device=device, capturing=capturing)
            known[block] = divide(reports, ask, expected_calls)
        found += [{"bucket": bucket, "block": block, **one} for one in known[block]]
    return found


def _explain(text: str, device: str | None, capturing: bool) -> Report:
    return Call(text).explain({}, device, capturing)


def divide(reports: Sequence[Report], ask: Callable[[str], Report], expected_calls: int) -> list[dict[str, Any]]:
    """Returns the decisions about a chain of selection reports. `ask` returns the report of a call as text."""
    candidates = []
    for rule, first in itertools.product(RULES, range(len(reports))):
        parts = reports[first : first + len(rule.parts)]
        if _fits(rule, [part["operation"] for part in parts]):
            candidates.append((first, first + len(parts), _weigh(rule, parts, ask, expected_calls)))
    # The least cost of the first `end` operations, and the candidate that ends there; an operation without a time is free
    # on every way, so that it decides nothing.
    best: list[tuple[float, int]] = [(0.0, -1)]
    for end in range(1, len(reports) + 1):
        best.append((best[end - 1][0] + (cost_of(reports[end - 1]) or 0.0), -1))
        for number, (first, last, one) in enumerate(candidates):
            if last == end and one["us_joined"] is not None and best[first][0] + one["us_joined"] < best[end][0]:
                best[end] = (best[first][0] + one["us_joined"], number)
    end = len(reports)
    while end > 0:
        number = best[end][1]
        if number >= 0:
            candidates[number][2]["decision"] = "join"
        end = candidates[number][0] if number >= 0 else end - 1
    return [_said(one) for _, _, one in candidates]


def _weigh(rule: Rule, parts: Sequence[Report], ask: Callable[[str], Report], expected_calls: int) -> dict[str, Any]:
    one: dict[str, Any] = {
        "parts": [part["operation"] for part in parts],
        "joined": rule.joined or None,
        "kernel_id": None,
        "call": None,
        "decision": "refused",
        "us_apart": None,
        "us_joined": None,
        "reason": "",
    }
    text, one["reason"] = rule.call(parts)
    if text is None:
        return one
    report = ask(text)
    one |= {"call": text, "kernel_id": report["kernel_id"]}
    if report["kernel_id"] is None:
        return one | {"reason": f"no kernel of {rule.joined} takes the call"}
    costs = [cost_of(part) for part in parts]
    joined = cost_of(report)
    unmeasured = [part["operation"] for part, us in zip(parts, costs, strict=True) if us is None]
    unmeasured += [rule.joined] if joined is None else []
    if unmeasured or joined is None:
        return one | {"reason": f"no measured time of {', '.join(dict.fromkeys(unmeasured))}"}
    if rule.packs:  # packing reads and writes the weight once; a product of one row reads it once
        dtype, (n, k) = parts[0]["key"]["dtype"], _sizes(parts[0], "n", "k") or (1, 1)
        once = cost_of(ask(f"linear --input {dtype}[1,{k}] --weight {dtype}[{n},{k}]"))
        if once is None:
            return one | {"reason": "no measured time of a product of one row, which packing is taken from"}
        joined += 2 * once / expected_calls
    return one | {"decision": "apart", "us_apart": sum(us or 0.0 for us in costs), "us_joined": joined}


def _said(one: dict[str, Any]) -> dict[str, Any]:
    parts = " + ".join(one["parts"])
    if one["decision"] == "refused":
        text = f"{parts} stay apart: {one['reason']}"
    else:
        verb = f"join as {one['joined']}" if one["decision"] == "join" else "stay apart"
        text = f"{parts} {verb}: {one['us_apart']:.1f} us apart, {one['us_joined']:.1f} us as {one['joined']}"
    return one | {"text": text}
