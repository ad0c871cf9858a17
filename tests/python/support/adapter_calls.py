"""A conformance case as the values that an adapter gets: every parameter in the contract's order, defaults filled in."""

import torch
from layerzero.contracts import contracts


def values_of(name, arguments, accepts, moved=lambda tensor: tensor):
    """The values, tensors through `moved`; None if the call gives an argument by name that `accepts` does not list."""
    contract, values = contracts()[name], []
    given = dict(arguments)
    for p in contract["params"]:
        value = given.get(p["name"], p.get("default"))
        if p["name"] in ("scale", "sm_scale") and value is None:
            value = 0.125
        changed = isinstance(value, torch.Tensor) or value not in (None, p.get("default"))
        if p.get("keyword_only") and changed and p["name"] not in (*accepts, "scale", "sm_scale"):
            return None
        values.append(moved(value) if isinstance(value, torch.Tensor) else value)
    return values + ([given["layout"]] if contract["layouts"] else [])
