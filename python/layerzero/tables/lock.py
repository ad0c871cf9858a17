"""`layerzero.lock`: all choices and versions of a deployment in one file that diffs line by line, and what changed since."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerzero import _layerzero
from layerzero.errors import ConfigError
from layerzero.host.files import replaced
from layerzero.tables import DispatchTable

VERSION = "1.0"
_ABOUT = ("model_id", "hardware_signature", "versions", "policy_hash", "policy", "tp_size", "capabilities_hash")
_MARKS = ("numerics", "tp_invariant", "tp_sizes", "capturing", "plan_mode", "shape_buckets")


def lock_of(table: DispatchTable, made_of: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the lock of a table: one choice for each call at the end of each bucket, in alphabetical order.

    made_of: {"operations": [text]}, {"model": path} or {"workload": path}, from which `layerzero solve --check` makes the table again.
    """
    document = table.document
    return {
        "lock_version": VERSION,
        **{key: document.get(key) for key in (*_ABOUT, *_MARKS)},
        "compile_jit": "uncompiled" in document,
        "uncompiled": document.get("uncompiled", []),
        "made_of": dict(made_of or {}),
        "joint": [pair["text"] for pair in document.get("joint", [])],
        "choices": document.get("choices", []),
    }


def write_lock(path: str | os.PathLike[str], lock: Mapping[str, Any]) -> None:
    """Writes a lock, one choice and one version a line; equal locks have equal bytes."""
    lines = []
    for key, value in lock.items():
        if isinstance(value, list) and value:
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            lines.append(f'"{key}": [\n{rows}\n ]')
        elif isinstance(value, dict) and value:
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(value.items()))
            lines.append(f'"{key}": {{\n{rows}\n }}')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    with replaced(path) as file:
        file.write(("{\n " + ",\n ".join(lines) + "\n}\n").encode())


def read_lock(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a lock; a table as JSON is one too. ConfigError: it is neither."""
    name = os.fspath(path)
    fix = "make it with `layerzero solve --lock`"
    try:
        lock = json.loads(bytes(_layerzero.read_trusted(name, "lock")))
    except ValueError as error:
        raise ConfigError(name, "a lock or a dispatch table as JSON", f"no JSON ({error})", fix) from None
    if isinstance(lock, dict) and isinstance(lock.get("plans"), list):
        return lock_of(DispatchTable(lock, name))
    choices = lock.get("choices") if isinstance(lock, dict) else None
    complete = isinstance(choices, list) and all(
        isinstance(one, dict) and {"class", "kernel_id"} <= one.keys() for one in choices
    )
    if not complete or lock.get("lock_version") != VERSION:
        got = f"lock_version {lock.get('lock_version')!r}" if isinstance(lock, dict) else type(lock).__name__
        raise ConfigError(name, f'a lock with "lock_version": "{VERSION}" and choices', got, fix)
    return lock


def solve_again(lock: Mapping[str, Any], name: str, **options: Any) -> DispatchTable:
    """Makes the table of a lock again, on this machine: same calls or model, same buckets and marks, kernels compiled before
    if they were. options: of `solve`; a budget_s counts for locks with compile_jit alone, else InvalidRequestError.
    """
    from layerzero.tables.solve import solve

    what = lock.get("made_of") or {}
    if "operations" in what:
        source: Any = what["operations"]
    elif "model" in what:
        source = model_at(what["model"])
    elif "workload" in what:
        source = Path(what["workload"])
    else:
        raise ConfigError(
            f"{name}: made_of", "operations, a model or a workload", "none of them", "make it with `layerzero solve`"
        )
    marks: dict[str, Any] = {key: lock.get(key) for key in ("numerics", "shape_buckets")}
    marks |= {key: bool(lock.get(key)) for key in ("tp_invariant", "capturing", "plan_mode", "compile_jit")}
    return solve(source, model_id=lock.get("model_id"), tp_sizes=lock.get("tp_sizes") or (), **marks, **options)


def model_at(path: str | os.PathLike[str]) -> Any:
    """Loads the model of a folder, for solve."""
    from layerzero.host.optional import need

    need("transformers", what="solve --model")
    import transformers

    if not Path(path).is_dir():
        raise ConfigError("model", "a folder with a model", os.fspath(path), "pass the folder that has config.json")
    return transformers.AutoModelForCausalLM.from_pretrained(path, local_files_only=True).eval()


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what differs between two locks: {"versions", "choices", "only_before", "only_after", "calls"}.

    A changed choice has both kernels with both locks' times; `cost` is the time after over the time before where both are
    known, times `count` for the whole.
    """
    versions = []
    for key in ("hardware_signature", "policy_hash", "tp_size", *_MARKS, "compile_jit"):
        if (before.get(key) or None) != (after.get(key) or None):
            versions.append({"name": key, "before": before.get(key), "after": after.get(key)})
    for group in ("versions", "policy"):
        one, two = before.get(group) or {}, after.get(group) or {}
        for name in sorted(one.keys() | two.keys()):
            if one.get(name) != two.get(name):
                versions.append({"name": name, "before": one.get(name), "after": two.get(name)})
    first, second = ({c["class"]: c for c in lock["choices"]} for lock in (before, after))
    changed = [
        _change(first[name], second[name])
        for name in sorted(first.keys() & second.keys())
        if first[name]["kernel_id"] != second[name]["kernel_id"]
    ]
    versions += _uncompiled(before, after)
    if not versions and before.get("capabilities_hash") != after.get("capabilities_hash"):
        hashes = {key: lock.get("capabilities_hash") for key, lock in (("before", before), ("after", after))}
        versions.append({"name": "capabilities_hash", **hashes})
    return {
        "versions": versions,
        "choices": changed,
        "only_before": sorted(first.keys() - second.keys()),
        "only_after": sorted(second.keys() - first.keys()),
        "calls": len(first.keys() & second.keys()),
    }


def _uncompiled(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the kernels that were compiled for the table of one lock and not of the other."""
    one, two = (
        {f"{left['kernel_id']} for {left['call']}": left["why"] for left in lock.get("uncompiled") or ()}
        for lock in (before, after)
    )
    return [
        {"name": name, "before": one.get(name, "compiled"), "after": two.get(name, "compiled")}
        for name in sorted(one.keys() ^ two.keys())
    ]


def _time_of(choice: Mapping[str, Any], kernel: str) -> float | None:
    """Returns a kernel's time in a choice, where it is the chosen one or its best rival."""
    if choice["kernel_id"] == kernel:
        return choice.get("us")
    return choice.get("rival_us") if choice.get("rival") == kernel else None


def _change(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    us = {"us_before": one.get("us"), "us_after": two.get("us")}
    known = all(value for value in us.values())
    return {
        "class": one["class"],
        "count": one.get("count"),
        "kernel_before": one["kernel_id"],
        "kernel_after": two["kernel_id"],
        **us,
        "kernel_before_us_now": _time_of(two, one["kernel_id"]),
        "cost": two["us"] / one["us"] if known else None,
    }


def change_text(change: Mapping[str, Any]) -> str:
    """Returns "class: a 12.1 us -> b 9.8 us (0.81x)"; "unmeasured" where no time is known."""

    def time(us: float | None) -> str:
        return "unmeasured" if us is None else f"{us:.1f} us"

    cost = "" if change["cost"] is None else f" ({change['cost']:.2f}x)"
    now = change["kernel_before_us_now"]
    still = "" if now is None else f"; {change['kernel_before']} would take {now:.1f} us now"
    return (
        f"{change['class']}: {change['kernel_before']} {time(change['us_before'])} -> {change['kernel_after']} "
        f"{time(change['us_after'])}{cost}{still}"
    )
