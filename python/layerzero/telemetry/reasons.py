"""Why a selection chose its kernel, and why each other one lost, in one line each."""

from typing import Any


def why_chosen(report: dict[str, Any]) -> str:
    """Returns "locked", "measured: 12.3 us", "priority 80", "only a reference is left" ... of a selection's report."""
    winner = next((c for c in report["candidates"] if c["kernel_id"] == report["kernel_id"]), None)
    if winner is None:
        return "no kernel may run"
    if report["locked"]:
        return "locked"
    if report["table"] is not None and report["table"]["use"] == "used":
        return "the dispatch table"
    if winner["reference"]:
        return "only a reference is left"
    if not any(c["admissible"] and not c["reference"] and c is not winner for c in report["candidates"]):
        return "the only kernel that may run"
    terms = {term["name"]: term["value"] for term in winner["terms"]}
    if "measured" in terms and winner.get("measured_us"):
        return f"measured: {winner['measured_us']:.4g} us"
    return f"priority {terms.get('priority', 0):g}" + (", preferred by the policy" if terms.get("preferred") else "")


def why_lost(candidate: dict[str, Any], report: dict[str, Any]) -> str:
    """Returns the reasons of a candidate that was refused, or what it scored less."""
    if candidate["reasons"]:
        return "; ".join(dict.fromkeys(f"{r['code']}: {r['message']}" for r in candidate["reasons"]))
    if report["locked"]:
        return f"{report['locked']} is locked"
    if candidate["reference"]:
        return "a reference runs only if no other kernel may"
    if candidate.get("measured_us"):
        return f"measured: {candidate['measured_us']:.4g} us"
    return f"score {candidate['score']:g} of {report['score']:g}"
