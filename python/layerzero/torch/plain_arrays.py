"""Arrays of other libraries where torch is not installed: calls on host memory through the C ABI, with NumPy's arrays between."""

import contextlib
import ctypes
import functools
import operator
import pathlib
import sys
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import contracts, is_seeded
from layerzero.contracts.axes import Description
from layerzero.errors import NotInstalledError, WrongTypeError, one_of, raise_engine_error
from layerzero.host.optional import install_command
from layerzero.host.policy import scope
from layerzero.torch.arrays import refused_out, unwritten, with_own_booleans
from layerzero.torch.checks import TENSOR_WANTED

_ABI_MAJOR, _AXES = 1, 8
# DLPack's (code, bits) of dtypes; the ones after "bool" are ml_dtypes' in NumPy.
_DTYPES = {
    "float64": (2, 64),
    "float32": (2, 32),
    "float16": (2, 16),
    "int64": (0, 64),
    "int32": (0, 32),
    "int16": (0, 16),
    "int8": (0, 8),
    "uint8": (1, 8),
    "bool": (6, 8),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
}
_NAMES = {code: name for name, code in _DTYPES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Value(ctypes.Union):
    _fields_ = [("i", ctypes.c_int64), ("f", ctypes.c_double)]


class _Scalar(ctypes.Structure):
    _fields_ = [("value", _Value), ("given", ctypes.c_uint64)]


class _Request(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("policy", ctypes.c_int64),
        ("op", ctypes.c_void_p),
        ("tensors", ctypes.POINTER(_Tensor)),
        ("scalars", ctypes.POINTER(_Scalar)),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("parallel", ctypes.c_void_p),
    ]


class _Error(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("code", ctypes.c_int32),
        *((name, ctypes.c_char_p) for name in ("field", "wanted", "got", "fix", "text")),
    ]


_FIND = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_SHAPES = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Request), ctypes.POINTER(_Tensor), ctypes.c_uint64)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Request))


class _Api(ctypes.Structure):
    """The first functions of lz_api in include/layerzero/c_abi.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("abi_major", ctypes.c_uint32),
        ("build_id", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("last_error", ctypes.CFUNCTYPE(ctypes.POINTER(_Error))),
        ("find", _FIND),
        ("output_shapes", _SHAPES),
        ("select", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_void_p),
        ("run", _RUN),
    ]


@functools.cache
def _api() -> Any:
    """The engine that the C binding uses: the same library, and so the same policy, plans and metrics."""
    library = ctypes.CDLL(str(pathlib.Path(_layerzero.__file__).parent / "liblayerzero.so"))
    library.lz_get_api.restype = ctypes.POINTER(_Api)
    library.lz_get_api.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    return library.lz_get_api(_ABI_MAJOR, ctypes.sizeof(_Api)).contents


@functools.cache
def _found(name: str) -> ctypes.c_void_p:
    op = ctypes.c_void_p()
    _check(_api().find(name.encode(), ctypes.byref(op)))
    return op


def _check(code: int) -> None:
    if code:
        error = _api().last_error().contents
        texts = [(getattr(error, field) or b"").decode() for field in ("field", "wanted", "got", "fix", "text")]
        raise_engine_error(code, *texts, None)  # type: ignore[call-arg]


def can_serve(arguments: dict[str, Any], names: list[str]) -> bool:
    """Whether all tensors of a call are arrays in host memory, and NumPy is there to view them."""
    given = [arguments[n] for n in names if arguments.get(n) is not None]
    devices = [getattr(value, "__dlpack_device__", None) for value in given]
    return "numpy" in sys.modules and all(device is not None and device()[0] == 1 for device in devices)


def call(name: str, arguments: dict[str, Any], options: dict[str, Any], names: list[str]) -> Any:
    """Runs operation `name` on arrays of one library, and returns arrays of it: float32 and the like, of any strides."""
    contract, arguments = contracts()[name], with_own_booleans(arguments)
    given = {n: arguments[n] for n in names if arguments.get(n) is not None}
    kinds = {type(value) for value in given.values()}
    if len(kinds) > 1:
        got = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise WrongTypeError(name, "all arrays of one kind", got, "convert them first")
    if options.get("out") is not None:
        raise refused_out(name, options["out"])
    for option in [key for key, value in options.items() if value is not None and key != "layout"]:
        fix = install_command("torch")
        raise NotInstalledError(f"{name}: {option}", "torch for this option with arrays", "none", fix)
    arrays = {n: _as_numpy(f"{name}: {n}", value) for n, value in given.items()}
    _check_written(contract, given, arrays)
    layout = _layout_of(name, arrays, arguments, options.get("layout"))
    swapped = layout is not None and list(contract["layouts"]).index(layout) == 1
    if swapped:
        layouts = {p["name"] for p in contract["params"] if p.get("layout")}
        arrays = {n: array.swapaxes(1, 2) if n in layouts else array for n, array in arrays.items()}
    if (
        is_seeded(contract)
        and all(arguments.get(n) is None for n in ("seed", "uniform"))
        and not arguments.get("offset")
    ):
        arrays["uniform"] = _drawn(name, arrays)
    results = _run(contract, arrays, arguments)
    flags = [output["layout"] for output in contract["outputs"]]
    results = [
        r.swapaxes(1, 2) if swapped and flag and r is not None else r for r, flag in zip(results, flags, strict=True)
    ]
    found = [_as_kind_of(next(iter(given.values())), result) for result in results if result is not None]
    return None if not found else found[0] if len(found) == 1 else tuple(found)


def _layout_of(name: str, arrays: dict[str, Any], arguments: dict[str, Any], layout: str | None) -> str | None:
    """Raises the error of an invalid call; returns its layout, which is found as for tensors, or None."""
    call = {key: value for key, value in {**arguments, "layout": layout}.items() if value is not None}
    for n, array in arrays.items():
        strides = tuple(stride // array.itemsize for stride in array.strides)
        call[n] = Description(array.dtype.name, array.shape, strides)
    return _layerzero.check(_layerzero.ops[name], (), call)


def _drawn(name: str, arrays: dict[str, Any]) -> Any:
    from layerzero.torch.random import source

    rows, pairs = source(name)
    shape = arrays[rows].shape[:-1]
    return sys.modules["numpy"].random.random((*shape, 2) if pairs else shape)


def _check_written(contract: Any, given: dict[str, Any], arrays: dict[str, Any]) -> None:
    for param in contract["params"]:
        n = param["name"]
        if not param.get("mutated") or n not in given:
            continue
        if not isinstance(given[n], sys.modules["numpy"].ndarray):
            wanted, got, fix = "a NumPy array to write into", type(given[n]).__name__, "convert it first"
        elif arrays[n] is not given[n] or not arrays[n].flags.writeable:
            wanted, got, fix = "a writeable array without negative strides", unwritten(given[n]), "pass a copy of it"
        else:
            continue
        raise WrongTypeError(f"{contract['name']}: {n}", wanted, got, fix)


def _as_numpy(field: str, array: Any) -> Any:
    numpy = sys.modules["numpy"]
    if hasattr(array, "mask"):
        raise WrongTypeError(field, TENSOR_WANTED, "a masked array, whose mask would be lost", "call .filled()")
    found = array if isinstance(array, numpy.ndarray) else _viewed(numpy, field, array)
    if found.dtype.name not in _DTYPES or not found.dtype.isnative:
        got = f"{type(array).__name__} of {found.dtype.str if found.dtype.name in _DTYPES else found.dtype.name}"
        raise WrongTypeError(field, f"an array of {', '.join(_DTYPES)}", got, "convert it")
    size = found.dtype.itemsize
    if any(stride < 0 or stride % size for stride in found.strides):
        return found.copy()
    return found


def _viewed(numpy: Any, field: str, array: Any) -> Any:
    """An array of another library over its memory: by its own way to NumPy, or by DLPack alone."""
    if hasattr(array, "__array__"):
        with contextlib.suppress(TypeError):
            return numpy.asarray(array)
    try:
        return numpy.from_dlpack(array)
    except (TypeError, BufferError, RuntimeError, ValueError) as error:
        got = f"{type(array).__name__} that NumPy cannot read ({error})"
        raise WrongTypeError(field, TENSOR_WANTED, got, "convert it to a NumPy array") from error


def _tensor(array: Any, keep: list[Any]) -> _Tensor:
    code, bits = _DTYPES[array.dtype.name]
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    strides = (ctypes.c_int64 * max(array.ndim, 1))(*(stride // array.dtype.itemsize for stride in array.strides))
    keep += [array, shape, strides]
    device = (ctypes.c_int32 * 2)(1, 0)
    return _Tensor(array.ctypes.data, device, array.ndim, code, bits, 1, shape, strides, 0)


def _absent() -> _Tensor:
    return _Tensor(ndim=-1)


def _scalar(field: str, param: Any, value: Any) -> _Scalar:
    if value is None:
        if not param.get("has_default") or param.get("default") is None:
            return _Scalar(given=0)
        value = param["default"]
    kind = param["kind"]
    if kind == "choice":
        if not isinstance(value, str):
            raise WrongTypeError(field, "one of the strings that its page lists", type(value).__name__)
        return _Scalar(_Value(i=param["choices"].index(one_of(field, value, param["choices"]))), 1)
    if kind == "bool":
        if not isinstance(value, bool):
            raise WrongTypeError(field, "True or False", type(value).__name__)
        return _Scalar(_Value(i=value), 1)
    if isinstance(value, list | tuple) and len(value) == 1 and kind == "int":
        (value,) = value
    wanted, convert = ("a number", "__float__") if kind == "float" else ("an integer", "__index__")
    if isinstance(value, bool) or not hasattr(value, convert):
        raise WrongTypeError(field, wanted, type(value).__name__)
    try:
        number = float(value) if kind == "float" else operator.index(value)
    except (TypeError, ValueError, OverflowError):
        raise WrongTypeError(field, wanted, type(value).__name__) from None
    if kind == "int" and not -(2**63) <= number < 2**63:
        raise WrongTypeError(field, f"{wanted} of 64 bits", str(number))
    return _Scalar(_Value(f=number) if kind == "float" else _Value(i=int(number)), 1)


def _run(contract: Any, arrays: dict[str, Any], arguments: dict[str, Any]) -> list[Any]:
    numpy, keep = sys.modules["numpy"], list[Any]()
    name = contract["name"]
    inputs = [
        _tensor(arrays[p["name"]], keep) if p["name"] in arrays else _absent()
        for p in contract["params"]
        if p["kind"] == "tensor"
    ]
    scalars = [
        _scalar(f"{name}: {p['name']}", p, arguments.get(p["name"]))
        for p in contract["params"]
        if p["kind"] != "tensor"
    ]
    count = len(contract["outputs"])
    tensors = (_Tensor * (len(inputs) + count))(*inputs, *(_absent() for _ in range(count)))
    values = (_Scalar * max(len(scalars), 1))(*scalars)
    request = _Request(ctypes.sizeof(_Request), 0, scope.get(), _found(name), tensors, values, None, None, 0, None)
    shapes = [(ctypes.c_int64 * _AXES)() for _ in range(count)]
    outputs = (_Tensor * max(count, 1))(*(_Tensor(shape=shape) for shape in shapes))
    _check(_api().output_shapes(ctypes.byref(request), outputs, count))
    results: list[Any] = []
    for i, output in enumerate(outputs[:count]):
        if output.ndim < 0:
            results.append(None)
            continue
        result = numpy.empty(tuple(shapes[i][: output.ndim]), _numpy_dtype(_NAMES[output.code, output.bits]))
        tensors[len(inputs) + i] = _tensor(result, keep)
        results.append(result)
    _check(_api().run(ctypes.byref(request)))
    return results


def _numpy_dtype(name: str) -> Any:
    if name != "bfloat16" and not name.startswith("float8"):
        return name
    try:
        import ml_dtypes
    except ImportError:
        what = f"ml_dtypes for a NumPy array of {name}"
        raise NotInstalledError("outputs", what, "no such package", "pip install ml_dtypes") from None
    return getattr(ml_dtypes, name)


def _as_kind_of(like: Any, result: Any) -> Any:
    if isinstance(like, sys.modules["numpy"].ndarray):
        return result
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().asarray(result)
    return sys.modules[type(like).__module__.partition(".")[0]].from_dlpack(result)  # of DLPack alone
