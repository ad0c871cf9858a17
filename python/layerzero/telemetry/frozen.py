"""A policy that keeps the kernels of a recorded run: locks and rules of the decisions that `lz.report` has seen."""

import json
from typing import Any


def frozen(decisions: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns {"locks", "rules"} with which the recorded calls (report.to_dict()["decisions"]) keep their kernels.

    An operation whose calls all had one kernel is locked to it. Of the others each recorded class of calls has a rule, which
    names the sizes, options and dtypes that differ between the recorded calls (of two that differ in none, the later one
    decides); a class that was not recorded is selected as before.
    """
    kernels: dict[str, list[dict[str, Any]]] = {}
    for report in (decision["report"] for decision in decisions):
        if report["kernel_id"] is not None:
            kernels.setdefault(report["operation"], []).append(report)
    locks, rules = {}, []
    for operation, reports in sorted(kernels.items()):
        if len({report["kernel_id"] for report in reports}) == 1:
            locks[operation] = reports[0]["kernel_id"]
        else:
            rules += _rules(operation, reports)
    return {"locks": locks, "rules": rules}


def _rules(operation: str, reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    differ = [
        name
        for name in reports[0]["key"]
        if name.isidentifier() or name.endswith(".dtype")
        if len({_text(r["key"].get(name)) for r in reports}) > 1
    ]
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        match = {"operation": operation} | {name: report["key"].get(name) for name in differ}
        found[_text(match)] = {"match": match, "lock": report["kernel_id"]}
    return list(found.values())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def policy_text(policy: dict[str, Any], head: str) -> str:
    """Returns the policy as a YAML file with `head` as its comment."""
    lines = [*(f"# {line}" for line in head.splitlines()), "version: 1"]
    if policy["locks"]:
        lines += ["locks:", *(f"  {operation}: {kernel}" for operation, kernel in policy["locks"].items())]
    if policy["rules"]:
        lines.append("rules:")
    for rule in policy["rules"]:
        lines += ["  - match:", *(f"      {name}: {_scalar(value)}" for name, value in rule["match"].items())]
        lines.append(f"    lock: {rule['lock']}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) and value.replace(".", "").replace("_", "").isalnum() else json.dumps(value)
