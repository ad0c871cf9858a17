"""Selection as objects: a call as selection sees it, and the available kernels. The engine decides, as for a call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from layerzero import _layerzero
from layerzero.backends.python_kernels import F, dtype_name, register_kernel
from layerzero.contracts import contracts
from layerzero.errors import InvalidRequestError, NoKernelFoundError, UnknownNameError, failures_of
from layerzero.host.typed import typed
from layerzero.inspection import explain, kernel_rows, run
from layerzero.inspection.report import Record, SelectionReport
from layerzero.inspection.schemas import OperationSchema, schema_of


@dataclass(frozen=True, eq=False)
class SelectionContext:
    """A call as selection sees it: made by `from_tensors` or `SelectionContextBuilder`, for `KernelRegistry.select`.

    It keeps the call's tensors, and facts as of its creation. None: the operation has no such fact.
    """

    op_id: str  # "attention.gqa.decode"
    tensors: Mapping[str, Any]
    params: Mapping[str, Any]  # as they were passed
    dtype: str | None = None  # of the first tensor, like strides
    strides: tuple[int, ...] | None = None  # in elements
    axes: Mapping[str, int] = field(default_factory=dict)  # sizes by the names of the schema
    batch_size: int | None = None
    seq_len_q: int | None = None
    seq_len_k: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None  # of queries and keys
    enable_gqa: bool | None = None
    layout: str | None = None
    is_causal: bool | None = None
    attn_mask_type: str | None = None  # none, bool, float
    requires_grad: bool | None = None
    is_cuda_graph_capturing: bool | None = None
    device: Record | None = None  # as in doctor().devices
    policy_hash: str | None = None
    report: SelectionReport | None = None  # None: only a schema describes the operation

    @classmethod
    def from_tensors(cls, q: Any, k: Any, v: Any, **kw: Any) -> "SelectionContext":
        """Makes a context of a call of `attention`, with its parameters and `device`; `is_causal` and `layout_hint` are
        accepted for causal and layout.

        q: (B,S,H,D), k, v: (B,S_kv,H_kv,D); with layout="BHSD" (B,H,S,D). Raises InvalidRequestError, a ValueError, if
        these are not a valid call.
        """
        for name, meant in (("is_causal", "causal"), ("layout_hint", "layout")):
            if name in kw and meant not in kw:
                kw[meant] = kw.pop(name)
        return SelectionContextBuilder(schema_of("attention")).build(q, k, v, **kw)


class SelectionContextBuilder:
    """Makes contexts of calls that fit a schema."""

    @typed
    def __init__(self, schema: OperationSchema) -> None:
        self.schema = schema

    def build(self, *tensors: Any, device: str | Record | None = None, **params: Any) -> SelectionContext:
        """Returns the context of a call: tensors in the schema's order or by name, scalars by name.

        `device`: another one than the tensors', from doctor().devices or by name, also a simulated one. Raises
        InvalidRequestError, a ValueError, with all problems that `schema.validate` finds.
        """
        schema = self.schema
        name = device.name if isinstance(device, Record) else device
        call = schema.call(tensors, params, name)
        if not (call.problems or call.report) and _layerzero.find(schema.operation):
            call = schema_of(schema.operation).call((), call.tensors | call.params, name)
        if call.problems:
            raise InvalidRequestError(schema.operation, "a call that fits its schema", "; ".join(call.problems))
        if call.report is None and name is not None:
            raise InvalidRequestError("device", "none: the engine does not know the operation", name)
        first: Any = next((call.tensors[t.name] for t in schema.inputs if t.name in call.tensors), None)
        facts: dict[str, Any] = {"axes": call.axes} if call.report is None else _facts_of(call.report)
        return SelectionContext(
            call.report.operation if call.report else schema.operation,
            call.tensors,
            call.params,
            dtype=dtype_name(first.dtype) if first is not None else None,
            strides=tuple(first.stride()) if hasattr(first, "stride") else None,
            report=call.report,
            **facts,
        )


def _facts_of(report: SelectionReport) -> dict[str, Any]:
    """Extracts the context's facts from a report, by the engine's names."""
    key = report.key
    axes = {name: int(key[name]) for name in contracts()[report.name]["axes"] if name in key}
    mask = key.get("attn_mask.dtype")
    return {
        "axes": MappingProxyType(axes),
        "batch_size": axes.get("b"),
        "seq_len_q": axes.get("s_q"),
        "seq_len_k": axes.get("s_kv"),
        "num_heads": axes.get("h_q"),
        "num_kv_heads": axes.get("h_kv"),
        "head_dim": axes.get("d_qk"),
        "enable_gqa": axes["h_q"] != axes["h_kv"] if {"h_q", "h_kv"} <= axes.keys() else None,
        "layout": report.layout.name if "layout" in report else None,
        "is_causal": key["causal"] == "true" if "causal" in key else None,
        "attn_mask_type": None if mask is None else {"absent": "none", "bool": "bool"}.get(mask, "float"),
        "requires_grad": key["requires_grad"] == "true" if "requires_grad" in key else None,
        "is_cuda_graph_capturing": key["capturing"] == "true" if "capturing" in key else None,
        "device": report.device,
        "policy_hash": report.policy_hash,
    }


class Kernel(Record):
    """One kernel of an operation: kernel_id, operation, source, platform, dtypes, constraints ..., and how to call it."""

    __slots__ = ()

    def impl(self, *tensors: Any, **params: Any) -> Any:
        """Calls the operation with this kernel; raises NoKernelFoundError with its reasons if it may not run."""
        return run(self.name, *tensors, kernel=self.kernel_id, **params)


class KernelRegistry:
    """The operations and kernels of this process, and the user's own schemas.

    Every registry has the same kernels, those of the engine. Registered schemas belong to the object.
    """

    def __init__(self) -> None:
        self._own: dict[str, OperationSchema] = {}

    @typed
    def register_schema(self, schema: OperationSchema) -> None:
        """Adds the schema of an operation that LayerZero does not have: its calls can be validated and described.

        Raises ValueError for an operation of LayerZero, whose contract is its schema, and for another schema under a
        name that has one.
        """
        known = self.get_schema(schema.operation)
        if known is not None and known != schema:
            raise InvalidRequestError(
                "operation", "one without a schema", repr(schema.operation), "get_schema() returns it"
            )
        if known is None:
            self._own[schema.operation] = schema

    @typed
    def get_schema(self, operation: str) -> OperationSchema | None:
        """Returns the schema of an operation by its flat name, id or alias; None if unknown."""
        return self._own.get(operation) or (schema_of(operation) if _layerzero.find(operation) else None)

    def register_kernel(self, operation: str, kernel_id: str, **facts: Any) -> Callable[[F], F]:
        """Is `layerzero.register_kernel`: an operation that is unknown or only described is a ValueError."""
        return register_kernel(operation, kernel_id, **facts)

    @typed
    def get_candidates(self, operation: str) -> list[Kernel]:
        """Returns every kernel of an operation, or of all operations that share its flat name; [] if there is none."""
        name = _layerzero.find(operation)
        if name is None:
            return []
        kernels = [Kernel(kernel) for kernel in kernel_rows(name)]
        return [k for k in kernels if operation not in _ids(name) or k.operation == operation]

    @typed
    def get_fallback(self, operation: str) -> Kernel | None:
        """Returns the reference kernel, which serves calls that no other kernel may; None if there is none.

        Raises ValueError for a flat name that several operations share.
        """
        references = [k for k in self.get_candidates(operation) if k.reference and k.installed]
        if len({k.operation for k in references}) > 1:
            raise UnknownNameError("operation", f"one of {', '.join(_ids(references[0].name))}", repr(operation))
        return max(references, key=lambda k: k.priority, default=None)

    @typed
    def select(self, ctx: SelectionContext) -> Kernel:
        """Returns the kernel that the context's call would run now, under the policy in force.

        Raises NoKernelFoundError with every kernel's reasons if none may run.
        """
        if ctx.report is None:
            raise NoKernelFoundError(ctx.op_id, {}, f"{ctx.op_id}: LayerZero has no operation of this name")
        device = ctx.device.name if ctx.device is not None and ctx.device.simulated else None
        report = explain(ctx.op_id, device=device, **ctx.tensors, **ctx.params)
        if report.kernel_id is None:
            raise NoKernelFoundError(report.operation, failures_of(report.to_dict()))
        return next(k for k in self.get_candidates(report.operation) if k.kernel_id == report.kernel_id)


def _ids(name: str) -> list[str]:
    return [operation["id"] for operation in contracts()[name]["operations"]]
