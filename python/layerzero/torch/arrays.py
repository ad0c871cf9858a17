"""Arrays of other libraries (NumPy, JAX, CuPy): viewed as torch tensors; results have the same kind."""

import sys
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.errors import NotInstalledError, WrongTypeError
from layerzero.host.typed import is_bool
from layerzero.torch.checks import TENSOR_WANTED


def is_foreign(torch: Any, value: Any) -> bool:
    return value is not None and not isinstance(value, torch.Tensor)


def call_on_arrays(torch: Any, name: str, arguments: dict[str, Any], options: dict[str, Any], names: list[str]) -> Any:
    """Calls an operation on arrays and returns arrays of the same kind; memory is shared if the library allows it."""
    given = [arguments[n] for n in names if arguments.get(n) is not None]
    kinds = {type(value) for value in given}
    if len(kinds) > 1:
        raise WrongTypeError(
            name, "all arrays of one kind", " and ".join(sorted(k.__name__ for k in kinds)), "convert them first"
        )
    if options.get("out") is not None:
        raise refused_out(name, options["out"])
    tensors = {n: to_torch(torch, f"{name}: {n}", arguments[n]) for n in names if arguments.get(n) is not None}
    for param in contracts()[name]["params"]:
        if param.get("mutated") and param["name"] in tensors:
            _check_written(f"{name}: {param['name']}", arguments[param["name"]])
    values = {key: value for key, value in with_own_booleans(arguments).items() if value is not None}
    with torch.no_grad():
        result = _layerzero.ops[name](**values | tensors, **options)
    if result is None:  # it writes in place
        return None
    if isinstance(result, tuple):
        return tuple(_as_kind_of(given[0], t) for t in result)
    return _as_kind_of(given[0], result)


def with_own_booleans(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with Python's booleans in the place of NumPy's, which the engine does not read."""
    return {name: bool(value) if is_bool(value) else value for name, value in arguments.items()}


def refused_out(name: str, out: Any) -> WrongTypeError:
    wanted = "no out= with arrays of other libraries"
    return WrongTypeError(f"{name}: out", wanted, type(out).__name__, "use the array that the call returns")


def _check_written(field: str, array: Any) -> None:
    """Refuses arrays that an operation cannot write into: copies lose writes, and JAX's arrays are immutable."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        raise WrongTypeError(
            field, "a torch.Tensor or a NumPy array to write into", type(array).__name__, "convert it first"
        )
    if _needs_copy(array):
        raise WrongTypeError(field, "a writeable array without negative strides", unwritten(array), "pass a copy of it")


def unwritten(array: Any) -> str:
    """Why a NumPy array cannot be written into, as an error says it."""
    return "one that is read-only" if not array.flags.writeable else f"one with strides {array.strides}"


def _needs_copy(array: Any) -> bool:
    return not array.flags.writeable or any(stride < 0 for stride in array.strides)


def to_torch(torch: Any, field: str, array: Any) -> Any:
    """Returns a torch tensor over an array's memory; read-only memory and negative strides are copied."""
    numpy = sys.modules.get("numpy")
    try:
        if numpy is not None and isinstance(array, numpy.ndarray):
            return _from_numpy(torch, array)
        return torch.from_dlpack(array)
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        got = f"{type(array).__name__} that torch cannot read ({error})"
        raise WrongTypeError(field, TENSOR_WANTED, got, "convert it to a torch.Tensor") from error


def _from_numpy(torch: Any, array: Any) -> Any:
    if hasattr(array, "mask"):
        raise TypeError("its mask would be lost: call .filled()")
    if _needs_copy(array):
        array = array.copy()
    if array.dtype.kind == "V" and array.dtype.names is None:  # ml_dtypes: bfloat16, float8; their names are torch's
        dtype = getattr(torch, array.dtype.name, None)
        if isinstance(dtype, torch.dtype) and dtype.itemsize == array.itemsize:
            return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
    return torch.from_numpy(array)


def _to_numpy(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return tensor.numpy()
    try:
        import ml_dtypes
    except ImportError:
        raise NotInstalledError(
            "outputs", f"ml_dtypes for a NumPy array of {name}", "no such package", "pip install ml_dtypes"
        ) from None
    integers = torch.int16 if tensor.itemsize == 2 else torch.int8
    return tensor.view(integers).numpy().view(getattr(ml_dtypes, name))


def _as_kind_of(like: Any, tensor: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(like, numpy.ndarray):
        return _to_numpy(tensor)
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().from_dlpack(tensor)
    return sys.modules[type(like).__module__.partition(".")[0]].from_dlpack(tensor)  # CuPy
