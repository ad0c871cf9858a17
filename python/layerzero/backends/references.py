"""Each operation's torch reference as a kernel for any device: the fallback at run time."""

from collections.abc import Callable
from typing import Any

from layerzero.contracts import Contract, contracts
from layerzero.torch.references import host_kernel


def descriptor() -> dict[str, Any]:
    """Returns a descriptor of kernels that accept everything that the contracts admit."""
    ops = {operation["id"]: [_row(c, operation["id"])] for c in contracts().values() for operation in c["operations"]}
    return {
        "schema_version": "1.0",
        "backend": "torch.ref",
        "backend_version": "2.11",
        "platform": "any",
        "description": "Every operation as a torch expression: checks the other kernels, and is the last fallback.",
        "requires": [{"import": "torch", "distribution": "torch", "min_version": "2.11"}],
        "ops": ops,
    }


def _row(contract: Contract, operation: str) -> dict[str, Any]:
    first = next(p for p in contract["params"] if p["kind"] == "tensor")
    row: dict[str, Any] = {
        "kernel_id": f"torch.ref.{operation}",
        "source": "torch.ref",
        "adapter": f"{__name__}:{contract['name']}",
        "platform": "any",
        "reference": True,
        "priority": 10,
        "dtypes": first["dtypes"],
        "requires_layouts": list(contract["layouts"]) or ["any"],
        # Dropout draws random numbers, which a reference does not reproduce.
        "accepts": [p["name"] for p in contract["params"] if p["name"] != "dropout_p"],
        "supports_grad": contract["differentiable"],
        "requires_contiguous": False,
        "requires_last_dim_stride1": False,
        "deterministic": True,
    }
    (conditions,) = (o["when"] for o in contract["operations"] if o["id"] == operation)
    if {"h_q", "h_kv"} <= set(contract["axes"]) and all(c["field"] != "group" for c in conditions):
        row["supports_gqa"] = True
    if {"d_qk", "d_v"} <= set(contract["axes"]):
        row["max_head_dim"] = None
    return row


def __getattr__(name: str) -> Callable[..., Any]:
    if name in contracts():
        return host_kernel(name)
    raise AttributeError(name)
