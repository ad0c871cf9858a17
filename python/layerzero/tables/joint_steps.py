"""Joint plans of programs: neighboring steps that become one where measured times say so."""

import functools
from collections.abc import Sequence
from typing import Any

from layerzero import _layerzero
from layerzero.tables.calls import Call
from layerzero.tables.joint import Report, divide

ROWS = (1, 512)  # of a decode step and of a prompt: joined steps have to cost less for both
# A step: (callable, operands of its inputs, scalars, operands of its outputs); an operand of rows is a tuple that begins
# with its value.
Step = tuple[Any, list[Any], dict[str, Any], list[Any]]


def join_steps(steps: Sequence[Step], values: Sequence[tuple[Any, ...]]) -> list[Step]:
    """Returns the steps of a program with each addition and norm that is cheaper together as one."""
    found: list[Step] = []
    for step in steps:
        joined = _joined(found[-1], step) if found else None
        if joined is not None and _is_cheaper(step, values):
            found[-1] = joined
        else:
            found.append(step)
    return found


def _joined(add: Step, norm: Step) -> Step | None:
    """Returns the step that does both, or None: other operations, a sum that is not the norm's input, or one that would
    be written while it is read."""
    if add[0].__name__ != "elementwise" or norm[0].__name__ != "rms_norm":
        return None
    if add[2].get("function", "add") != "add" or add[2].get("scale", 1.0) != 1.0 or "normalized_shape" in norm[2]:
        return None
    (one, other), total, (source, weight), normed = add[1], add[3][0], norm[1], norm[3][0]
    rows = (one, other, total, normed)
    if source != total or not all(isinstance(r, tuple) and r[2] == total[2] and not r[3] for r in rows):
        return None
    if one[0] == total[0]:  # the sum may replace the second operand only
        one, other = other, one
    if normed[0] in (other[0], total[0]) or one[0] == total[0]:
        return None
    return _layerzero.ops["fused_add_rms_norm"], [one, other, weight], norm[2], [normed, total]


def _is_cheaper(norm: Step, values: Sequence[tuple[Any, ...]]) -> bool:
    source, weight = norm[1]
    dtype = values[source[0]][2] if values[source[0]][0] in ("rows", "output") else None
    return dtype is not None and _pays(str(dtype), source[2][-1], weight is not None)


@functools.lru_cache(maxsize=256)  # a model has few widths
def _pays(dtype: str, hidden: int, weighted: bool) -> bool:
    return all(_decision(rows, dtype, hidden, weighted) == "join" for rows in ROWS)


def _decision(rows: int, dtype: str, hidden: int, weighted: bool) -> str:
    shape = f"{dtype}[{rows},{hidden}]"
    weight = f" --weight {dtype}[{hidden}]" if weighted else ""
    chain = [_report(f"elementwise --input {shape} --other {shape}"), _report(f"rms_norm --input {shape}{weight}")]
    found = divide(chain, _report, 1)
    return found[0]["decision"] if found else "refused"


def _report(text: str) -> Report:
    return Call(text).explain({}, None, False)
