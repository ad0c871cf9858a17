"""Compiles recorded calls, on the thread of layerzero.jit.work."""

import dataclasses
from collections.abc import Callable
from typing import Any

from layerzero import backends
from layerzero.backends.inductor import recording, rows
from layerzero.contracts import host_parameter_names
from layerzero.errors import KernelRefusedError

_ready: dict[str, dict[int, Callable[..., Any]]] = {}  # by kernel id and the device's number, -1 for the CPU


def make_ready(call: Any) -> None:
    """Compiles what serves the call now or, if that cannot be traced, the operation's reference."""
    made = _ready.setdefault(call.kernel_id, {})
    number = int(call.device.partition(":")[2] or -1)
    if number not in made:
        try:
            function = compiled(call)
        except Exception:
            reference = recording.reference_of(call.name, call.operation)
            if call.eager.kernel_id == reference.kernel_id:
                raise
            call.eager, function = reference, compiled(dataclasses.replace(call, eager=reference))
        made[number] = function
        if len(made) == 1:
            adapter = f"layerzero.compiled:{call.kernel_id}"
            backends.add_function(adapter, _by_device(call, made), rows.compiled(call, adapter))


def _by_device(call: Any, made: dict[int, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that runs what was compiled for the device of its tensors: traced code names its device."""
    place = host_parameter_names(call.name).index(next(iter(call.tensors)))

    def kernel(*values: Any) -> Any:
        function = made.get(values[place].get_device())
        if function is None:
            raise _refusal(call, f"a call on {values[place].device}")
        return function(*values)

    return kernel


def _refusal(call: Any, got: str) -> KernelRefusedError:
    return KernelRefusedError(
        call.kernel_id,
        f"a call with {call.text}, strides and numbers as it was recorded, on a device where it was recorded",
        got,
        "make it inside `with layerzero.compile_references():`",
    )


def compiled(call: Any) -> Callable[..., Any]:
    """Returns a function of a kernel's arguments that runs what Inductor makes of the call's eager kernel.

    It is traced with tensors that have no values, so nothing depends on what they hold, and it has run once, so that
    what Triton tunes at the first run is done.
    """
    import torch
    from torch._inductor import standalone_compile
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree

    from layerzero.jit.examples import tensor_like
    from layerzero.jit.inductor import from_cache
    from layerzero.torch.captures import away_from_captures

    names = host_parameter_names(call.name)
    given = list(call.tensors)
    form: Any = None

    def expression(*tensors: torch.Tensor) -> list[torch.Tensor]:
        nonlocal form
        values = call.scalars | dict(zip(given, tensors, strict=True))
        arguments = [values.get(name) for name in names]
        result = call.eager.function(*arguments, *([call.layout] if call.layout is not None else []))
        outputs, form = _pytree.tree_flatten(result)
        return outputs

    with away_from_captures(call.device), torch.no_grad():
        examples = [tensor_like(facts._asdict(), call.device) for facts in call.tensors.values()]
        if call.free:
            free = [call.free.get(name, frozenset()) for name in given]
            graph, traced, shape_env = with_symbols(expression, examples, free)
            how: Any = {"dynamic_shapes": "from_graph", "options": {"config_patches": _options()}}
            run = from_cache(call, graph, _options(), lambda: standalone_compile(graph, traced, **how))
            fits = guards(shape_env, traced)
        else:
            graph = make_fx(expression, tracing_mode="fake")(*examples)
            how = {"dynamic_shapes": "from_example_inputs", "options": {"config_patches": _options()}}
            run = from_cache(call, graph, _options(), lambda: standalone_compile(graph, examples, **how))
            wanted = [(facts.shape, facts.strides) for facts in call.tensors.values()]
            fits = lambda tensors: [(t.shape, t.stride()) for t in tensors] == wanted  # noqa: E731
        run(*examples)
        if call.platform == "cuda":
            torch.cuda.current_stream().synchronize()
    places = [names.index(name) for name in given]
    scalars = [(i, call.scalars[name]) for i, name in enumerate(names) if name in call.scalars]

    def kernel(*values: Any) -> Any:
        tensors = [values[i] for i in places]
        if not fits(tensors) or any(values[i] != value for i, value in scalars):
            raise _refusal(call, "another one")
        return _pytree.tree_unflatten(run(*tensors), form)

    return kernel


def with_symbols(
    expression: Callable[..., Any], examples: list[Any], free_axes: list[frozenset[int]]
) -> tuple[Any, list[Any], Any]:
    """Returns the expression's graph, tensors without values whose free axes are symbols, and what is known of the symbols."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    traced = []
    for i, (tensor, free) in enumerate(zip(examples, free_axes, strict=True)):
        count = tensor.dim()
        context = StatelessSymbolicContext(  # type: ignore[var-annotated]
            dynamic_sizes=[DimDynamic.DUCK if axis in free else DimDynamic.STATIC for axis in range(count)],
            dynamic_strides=[DimDynamic.INFER_STRIDE] * count,
            constraint_sizes=[None] * count,
            constraint_strides=[None] * count,
        )
        traced.append(mode.from_tensor(tensor, source=ConstantSource(f"t{i}"), symbolic_context=context))
    with enable_python_dispatcher(), mode:  # without it torch has no shapes of some functions for symbols
        graph = make_fx(expression, tracing_mode="real")(*traced)
    return graph, traced, mode.shape_env


def guards(shape_env: Any, traced: list[Any]) -> Callable[[list[Any]], bool]:
    """Returns whether tensors fit what the trace and the compiler assumed: fixed sizes, strides, and relations of sizes."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    text = shape_env.produce_guards_expression(traced, ignore_static=False) or "True"
    code, known = compile(text, "<guards of a compiled reference>", "eval"), dict(SYMPY_INTERP)
    names, ranks = [f"t{i}" for i in range(len(traced))], [t.dim() for t in traced]

    def fits(tensors: list[Any]) -> bool:
        same = [t.dim() for t in tensors] == ranks
        return same and bool(eval(code, known, {"L": dict(zip(names, tensors, strict=True))}))  # noqa: S307

    return fits


def _options() -> dict[str, Any]:
    """Inductor computes as torch's own functions do: divisions and roundings are part of an operation's definition."""
    from torch._inductor import config

    wanted = {
        "emulate_precision_casts": True,
        "eager_numerics.division_rounding": True,
        "eager_numerics.use_pytorch_libdevice": True,
        "triton.cudagraphs": False,
    }
    known = config.get_config_copy()
    return {key: value for key, value in wanted.items() if key in known}
