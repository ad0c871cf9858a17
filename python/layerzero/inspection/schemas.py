"""Schemas of calls: `TensorSchema`, `OperationSchema`, and `schema_of`, which returns an operation's own schema."""

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from layerzero.backends.python_kernels import dtype_name
from layerzero.contracts import Contract, contracts, flat_name, resolve_call
from layerzero.contracts.shapes import dims_of
from layerzero.errors import InvalidRequestError, UnknownNameError, WrongTypeError
from layerzero.inspection import explain
from layerzero.inspection.report import SelectionReport

if TYPE_CHECKING:
    import torch


def _check_names(field: str, names: Any) -> None:
    if isinstance(names, str) or not isinstance(names, Iterable) or any(not isinstance(n, str) for n in names):
        raise WrongTypeError(field, "a list of names", repr(names))


@dataclass(frozen=True)
class TensorSchema:
    """One tensor of a call.

    `ndim`: the number of axes; None: as many as `shape_vars`, or any. `dtype_constraint`: the allowed dtypes, None:
    any; passed by name or as torch.dtype, stored by name. `shape_vars`: a name for each axis, where equal names mean
    equal sizes in one call; a number is that size, "_" any size, a first "..." any leading axes. `required`: whether a
    call must pass the tensor.
    """

    name: str
    ndim: int | None = None
    dtype_constraint: "Collection[str | torch.dtype] | None" = None
    shape_vars: tuple[str, ...] = ()
    required: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise WrongTypeError("name", "a name as of a parameter", repr(self.name))
        if self.ndim is not None and (isinstance(self.ndim, bool) or not isinstance(self.ndim, int)):
            raise WrongTypeError(f"{self.name}: ndim", "an integer or None", repr(self.ndim))
        _check_names(f"{self.name}: shape_vars", self.shape_vars)
        object.__setattr__(self, "shape_vars", tuple(self.shape_vars))
        if self.dtype_constraint is not None and (
            isinstance(self.dtype_constraint, str) or not isinstance(self.dtype_constraint, Collection)
        ):
            raise WrongTypeError(f"{self.name}: dtype_constraint", "a set of dtypes", repr(self.dtype_constraint))
        if self.dtype_constraint is not None:
            object.__setattr__(self, "dtype_constraint", frozenset(map(dtype_name, self.dtype_constraint)))
        if not self.shape_vars or self.shape_vars[0] == "...":
            return
        if self.ndim is None:
            object.__setattr__(self, "ndim", len(self.shape_vars))
        if self.ndim != len(self.shape_vars):
            raise InvalidRequestError(
                f"{self.name}: shape_vars", f"{self.ndim} as ndim says", str(len(self.shape_vars))
            )


@dataclass(frozen=True)
class OperationSchema:
    """The tensors and scalars of an operation.

    `params`: the scalars' types by name: int, float, bool or str; each scalar may be omitted or None. The schemas of
    LayerZero's own operations come from `KernelRegistry.get_schema`; for those the contract checks calls.
    """

    operation: str
    inputs: tuple[TensorSchema, ...]
    outputs: tuple[TensorSchema, ...]
    params: Mapping[str, type] = field(hash=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs"):
            tensors = getattr(self, name)
            if not isinstance(tensors, list | tuple) or any(not isinstance(t, TensorSchema) for t in tensors):
                raise WrongTypeError(f"{self.operation}: {name}", "a list of TensorSchema", repr(tensors)[:100])
        if not isinstance(self.operation, str) or not isinstance(self.params, Mapping):
            wanted = "a name, and params as a dict from name to type"
            raise WrongTypeError("OperationSchema", wanted, f"{self.operation!r}, {self.params!r}"[:100])
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "outputs", tuple(self.outputs))
        object.__setattr__(self, "params", dict(self.params))
        names = [*(tensor.name for tensor in self.inputs), *self.params]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidRequestError(self.operation, "each name once", f"{', '.join(twice)} again")
        self._check_axes()

    def validate(self, *tensors: Any, **params: Any) -> list[str]:
        """Returns a message for each problem of a call; [] if there is none.

        Tensors in the schema's order or by name (None: not given), scalars by name.
        """
        return self.call(tensors, params).problems

    def call(self, tensors: tuple[Any, ...], params: dict[str, Any], device: str | None = None) -> "Call":
        """Returns the call with its problems. Only the engine's operations have other devices."""
        given, problems = self._by_name(tensors, params)
        scalars = {name: value for name, value in given.items() if name in self.params}
        inputs = {name: value for name, value in given.items() if name not in self.params}
        for tensor in self.inputs:
            if tensor.required and tensor.name not in inputs:
                problems.append(f"{tensor.name}: wanted a tensor, got none")
        for name, value in list(inputs.items()):
            if not (hasattr(value, "shape") and hasattr(value, "dtype")):
                kind = type(inputs.pop(name)).__name__
                problems.append(f"{name}: wanted a tensor, got {kind}; scalars are passed by name")
        for name, value in scalars.items():
            if not _is_of(value, self.params[name]):
                problems.append(f"{name}: wanted {self.params[name].__name__}, got {type(value).__name__}")
        axes = self._bind_axes(inputs, problems)
        return Call(inputs, scalars, problems, axes=axes)

    def _by_name(self, tensors: tuple[Any, ...], params: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns the arguments by name, without those that are None, and what is wrong with their names."""
        names, problems = [tensor.name for tensor in self.inputs], []
        if len(tensors) > len(names):
            problems.append(f"{self.operation}: wanted at most {len(names)} tensors, got {len(tensors)}")
        given = {name: value for name, value in zip(names, tensors, strict=False) if value is not None}
        for name, value in params.items():
            if name not in names and name not in self.params:
                problems.append(f"{name}: wanted one of {', '.join([*names, *self.params])}, got an unknown name")
            elif name in given:
                problems.append(f"{name}: wanted it once, got it by place and by name")
            elif value is not None:
                given[name] = value
        return given, problems

    def _bind_axes(self, tensors: dict[str, Any], problems: list[str]) -> dict[str, int]:
        """Returns the size of each axis that has a name; adds to `problems` which tensors do not fit."""
        sizes: dict[str, int] = {}
        for tensor in [t for t in self.inputs if t.name in tensors]:
            value = tensors[tensor.name]
            shape = tuple(value.shape)
            if tensor.dtype_constraint is not None and dtype_name(value.dtype) not in tensor.dtype_constraint:
                wanted = ", ".join(sorted(map(dtype_name, tensor.dtype_constraint)))
                problems.append(f"{tensor.name}: wanted {wanted}, got {dtype_name(value.dtype)}")
            axes = tensor.shape_vars[tensor.shape_vars[:1] == ("...",) :]
            if (tensor.ndim is not None and len(shape) != tensor.ndim) or len(shape) < len(axes):
                wanted = f"{len(axes)} or more" if tensor.ndim is None else str(tensor.ndim)
                problems.append(f"{tensor.name}: wanted {wanted} axes, got {list(shape)}")
                continue
            for axis, size in zip(reversed(axes), reversed(shape), strict=False):
                known = int(axis) if axis.isdecimal() else size if axis == "_" else sizes.setdefault(axis, size)
                if size != known:
                    problems.append(f"{tensor.name}: wanted {axis} = {known}, got {list(shape)}")
        return sizes

    def _check_axes(self) -> None:
        for tensor in (*self.inputs, *self.outputs):
            for place, axis in enumerate(tensor.shape_vars):
                if not (axis.isidentifier() or axis.isdecimal() or (axis == "..." and place == 0)):
                    wanted = "a name, a number, _ or a first ..."
                    raise InvalidRequestError(f"{tensor.name}: shape_vars", wanted, repr(axis))


class Call(NamedTuple):
    """A call as a schema describes it: its arguments by name, and what is wrong with them."""

    tensors: dict[str, Any]
    params: dict[str, Any]
    problems: list[str]
    axes: dict[str, int] = {}  # noqa: RUF012  sizes by name; of an operation of the engine `report` has them
    report: SelectionReport | None = None  # only of an operation of the engine


def _is_of(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


class ContractSchema(OperationSchema):
    """The schema of one of LayerZero's operations: the engine checks calls. `shape_vars` may be expressions of axes."""

    def _check_axes(self) -> None:
        pass

    def call(self, tensors: tuple[Any, ...], params: dict[str, Any], device: str | None = None) -> Call:
        given, problems = self._by_name(tensors, params)
        inputs = {name: value for name, value in given.items() if name not in self.params}
        scalars = {name: value for name, value in given.items() if name in self.params}
        report = None
        try:
            function, scalars = resolve_call(self.operation, (), scalars)
            report = None if problems else explain(function, device=device, **inputs, **scalars)
        except UnknownNameError:  # an unknown device
            raise
        except (InvalidRequestError, TypeError) as error:
            problems.append(str(error))
        ids = [one["id"] for one in contracts()[flat_name(self.operation)]["operations"]]
        if report and self.operation in ids and report.operation != self.operation:
            problems.append(f"operation: wanted a call of {self.operation}, got one of {report.operation}")
        return Call(inputs, scalars, problems, report=report)


_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool, "choice": str}


@functools.cache
def schema_of(operation: str) -> OperationSchema:
    """Returns the schema of an operation by its flat name, id or alias, made from its contract."""
    contract = contracts()[flat_name(operation)]
    params = {p["name"]: _KINDS[p["kind"]] for p in contract["params"] if p["kind"] != "tensor"}
    if contract["layouts"]:
        params["layout"] = str
    inputs = tuple(
        _tensor(p["name"], "*" if p["broadcast"] else p["shape"], p["dtypes"], not p["optional"])
        for p in contract["params"]
        if p["kind"] == "tensor"
    )
    outputs = tuple(
        _tensor(o["name"], o["shape"], _output_dtypes(contract, o), not o["only_if"]) for o in contract["outputs"]
    )
    return ContractSchema(operation, inputs, outputs, params)


def _output_dtypes(contract: Contract, output: dict[str, Any]) -> list[str]:
    params = {p["name"]: p for p in contract["params"]}
    if output["dtype_choice"]:
        return output["choice_dtypes"] or params[output["dtype_choice"]]["choices"]
    return params[output["dtype"]]["dtypes"] if output["dtype"] in params else [output["dtype"]]


def _tensor(name: str, shape: str, dtypes: list[str], required: bool) -> TensorSchema:
    """Converts `shape` from the contracts' language; one that depends on a choice or blocks gets no rank or names."""
    if shape == "*" or shape.endswith("}") or shape.startswith("blocks("):
        return TensorSchema(name, None, dtypes, (), required)
    has_leading, dims = dims_of(shape)
    return TensorSchema(
        name, None if has_leading else len(dims), dtypes, ("...", *dims) if has_leading else dims, required
    )
