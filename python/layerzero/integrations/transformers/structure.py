"""Which modules of a model are what LayerZero's operations compute: identified by structure and by numbers, never by class name."""

import contextlib
import copy
import inspect
import types
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from layerzero import _layerzero
from layerzero.integrations.modules import HOOKS, TOLERANCE, agrees, normal
from layerzero.integrations.modules import Bound as Bound
from layerzero.integrations.modules import first_line as first_line
from layerzero.integrations.transformers import thresholds

_OPS = _layerzero.ops
_LINEAR_STATE = {*nn.Linear(1, 1).__dict__, "_is_hf_initialized"}
_ANY = torch.nn.modules.module
_LARGEST_EPS = 1e-3


def tolerance_of(dtype):
    """Relative L2 error within which a module and the operation agree."""
    return TOLERANCE[dtype]


def rows_for(weight, width):
    """Rows of three sizes, so that a clamp, an offset or an epsilon shows."""
    rows = normal(3, width) + 0.5
    return (rows * torch.tensor([[1.0], [1 / 16], [16.0]], dtype=torch.float32, device="cpu")).to(weight)


def result_of(forward, *arguments):
    """What a module's own code makes of rows that may not be what it takes: a tensor, else None."""
    try:
        result = forward(*arguments)
    except Exception:
        return None
    return result if isinstance(result, torch.Tensor) else None


def _tried(module, *rows):
    """(`result_of` a module's own forward, None or what in its code shows on no small rows)."""
    results = []
    bound = thresholds.why_bounded(module, lambda: results.append(result_of(type(module).forward, module, *rows)))
    return *results, bound


@contextlib.contextmanager
def evaluating(module):
    """Everything within is in evaluation mode, and afterwards in the mode that each part had."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def tensors_of(result):
    """Returns the floating-point tensors in a model's output."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    parts = result.values() if isinstance(result, Mapping) else result if isinstance(result, (tuple, list)) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def agrees_by_row(actual, expected):
    """Row by row: the large one would hide the others."""
    return expected is not None and actual.shape == expected.shape and all(map(agrees, actual, expected))


class Own:
    """The method that a module's class had when the module was replaced; a copy takes that of its first call."""

    def __init__(self, name="forward"):
        self._name = name
        self._method = None

    def of(self, kind):
        self._method = getattr(kind, self._name)
        return self

    def is_still(self, kind):
        if self._method is None:
            self.of(kind)
        return getattr(kind, self._name) is self._method

    def __reduce__(self):
        return Own, (self._name,)


def takes_own_code(module):
    """True for calls that are not for the operations: of what was undone or changed since, with gradients, traced."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return True
    own = module.__dict__.get("_layerzero_own")
    return own is None or not own.is_still(type(module))


def are_readable(rows):
    """True for tensors that a kernel can read: no meta or nested ones, no subclass with a meaning of its own."""
    return type(rows) is torch.Tensor and (rows.is_cpu or rows.is_cuda) and not rows.is_nested


def functions_of(function):
    """A function, those of its package that it calls by a name of its file, and those that these call; of torch's the
    function alone.
    """
    found = []

    def add(each, package):
        each = inspect.unwrap(each)
        if type(each) is not types.FunctionType or each in found:
            return
        own = each.__module__.partition(".")[0]
        if package in (None, own):
            found.append(each)
            for name in each.__code__.co_names if own != "torch" else ():
                add(each.__globals__.get(name), own)

    add(function, None)
    return tuple(found)


def globals_of(functions):
    """[(table, name)] of what functions read in their files."""
    return [(f.__globals__, name) for f in functions for name in f.__code__.co_names if name in f.__globals__]


def has_global_hooks():
    """True while hooks for the calls of all modules are registered."""
    return bool(_ANY._global_forward_hooks or _ANY._global_forward_pre_hooks)


def hooks_of(module):
    """The hook tables of a module, empty ones too: the same objects as long as the module lives."""
    return [module.__dict__[name] for name in HOOKS if name in module.__dict__]


def replaced_forward(members):
    """The forward in a module's __dict__, None without one or if it is the class's own, as removed hooks leave it."""
    forward = members.get("forward")
    bound = isinstance(forward, types.MethodType)
    own = bound and forward.__func__ is getattr(type(forward.__self__), "forward", None)
    return None if own else forward


def why_not_plain(module):
    """None, or why a module cannot be replaced whatever it computes."""
    if any(hooks_of(module)):
        return "has forward or backward hooks"
    if replaced_forward(module.__dict__) is not None:
        return "its forward was replaced by something else"
    if getattr(module, "parametrizations", None):
        return "is parametrised"
    for name, parameter in module.named_parameters(recurse=False):
        if type(parameter) is not nn.Parameter:
            return f"{name} is a {type(parameter).__name__}, not a plain parameter"
        if parameter.device.type == "meta":
            return f"{name} has no data yet (meta device)"
        if parameter.layout is not torch.strided:
            return f"{name} is {parameter.layout}: no kernel takes it"
        if parameter.dtype not in TOLERANCE:
            return f"{name} is {parameter.dtype}: no floating point kernel takes it"
    return None


def why_not_linear(module):
    """None, or why a module is not a plain linear layer: quantised and LoRA layers are subclasses or wrappers.

    A subclass passes with torch.nn.Linear's own state alone, nothing its forward could depend on, and the same numbers.
    """
    reason = why_not_plain(module)
    if type(module) is nn.Linear or (reason and isinstance(module, nn.Linear)):
        return reason
    name = f"{type(module).__module__}.{type(module).__name__} is not exactly torch.nn.Linear"
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return name
    state = {member for member in module.__dict__ if not member.startswith("_layerzero_")} - _LINEAR_STATE
    if state or module._buffers or module._modules or set(module._parameters) != {"weight", "bias"}:
        return name
    rows = rows_for(module.weight, module.in_features)
    with torch.no_grad():
        own, bound = _tried(module, rows)
        if not agrees_by_row(nn.functional.linear(rows, module.weight, module.bias), own):
            return f"{name} and computes something else"
    return f"{name}: {bound}" if bound else None


def why_not_conv1d(module):
    """None, or why a module is not a plain linear layer whose weight is stored as [inputs, outputs]."""
    if type(module) is Conv1D:
        return why_not_plain(module)
    return f"{type(module).__module__}.{type(module).__name__} is not exactly Conv1D"


def packed_weight(module):
    """None, or what says that a module keeps its weight in another form than floating point numbers."""
    for name, held in (*module._parameters.items(), *module._buffers.items()):
        if "weight" in name and held is not None and not held.is_floating_point():
            return f"{type(module).__module__}.{type(module).__name__} holds {name} as {held.dtype}"
    return None


def eps_of(module):
    """An epsilon that a module keeps or, where it keeps no tensors, the one in its code; or None."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is None and not _keeps_tensors(module):
        code = getattr(type(module).forward, "__code__", None)
        small = [c for c in getattr(code, "co_consts", ()) if type(c) is float and 0 < c <= _LARGEST_EPS]
        eps = small[0] if len(small) == 1 else None
    return float(eps) if isinstance(eps, (int, float)) else None


def _keeps_tensors(module):
    return any(held is not None for table in (module._parameters, module._buffers) for held in table.values())


def looks_like_norm(module):
    """An epsilon and a vector of weights, perhaps a bias, or neither: enough to try whether it is one of the norms."""
    weight = module._parameters.get("weight")
    named = set(module._parameters) <= {"weight", "bias"}
    plain = (named and weight.dim() == 1) if weight is not None else not _keeps_tensors(module)
    return plain and not module._modules and eps_of(module) is not None


def norm_of(module):
    """((operation, its further arguments), None) of a module that normalises rows, or (None, reason)."""
    reason = why_not_plain(module)
    if reason:
        return None, reason
    if len(inspect.signature(type(module).forward).parameters) != 2:
        return None, "its forward takes more than the rows"
    module, rows = _rows_for_norm(module)
    weight, bias, eps = module._parameters.get("weight"), module._parameters.get("bias"), eps_of(module)
    offsets = (0.0,) if weight is None else (0.0, 1.0)
    operations = ("rms_norm", "layer_norm") if bias is None else ("layer_norm",)
    candidates = [(operation, {"weight_offset": offset}) for operation in operations for offset in offsets]
    with torch.no_grad():
        expected, bound = _tried(module, rows)
        for operation, further in candidates if expected is not None else ():
            if agrees(norm(operation, rows, weight, eps, bias, **further), expected):
                return (None, bound) if bound else ((operation, further), None)
    return None, "computes neither rms_norm nor layer_norm of its weight and epsilon"


def _rows_for_norm(module):
    """(the module, in a dtype whose numbers tell more kinds apart; rows that do)."""
    weight = module._parameters.get("weight")
    if weight is not None and weight.dtype in (torch.bfloat16, torch.float16):
        module = copy.deepcopy(module).float()
    rows = normal(3, _width_of(module)) + 0.5  # a mean, which one kind of norm takes away
    # One row near zero: it shows the epsilon.
    rows[2] *= eps_of(module) ** 0.5
    rows = rows if weight is None else rows.to(module.weight)
    return module, rows[None]  # of three axes: what takes the second one for channels shows


def _width_of(module):
    """How many columns a norm takes: of one without weights what it says of it, else any number."""
    if module._parameters.get("weight") is not None:
        return module.weight.numel()
    shape = getattr(module, "normalized_shape", (64,))
    return shape if isinstance(shape, int) else shape[-1]


def gated_norm_of(module):
    """(weight_offset, None) of a module that returns silu(gate) * rms_norm(rows) of rows and a gate, or (None, reason)."""
    reason = why_not_plain(module)
    if reason:
        return None, reason
    if module._parameters.get("weight") is None:
        return None, "computes no rms_norm times the silu of a gate"
    module, rows = _rows_for_norm(module)
    gate = (4 * normal(*rows.shape, seed=8)).to(rows)
    with torch.no_grad():
        expected, bound = _tried(module, rows, gate)
        for offset in (0.0, 1.0) if expected is not None and "bias" not in module._parameters else ():
            if agrees(gated_norm(rows, gate, module.weight.detach(), eps_of(module), offset), expected):
                return (None, bound) if bound else (offset, None)
    return None, "computes no rms_norm times the silu of a gate"


def gated_norm(rows, gate, weight, eps, offset):
    """The norm that `gated_norm_of` found."""
    factors = _OPS["activation"](gate, "silu")
    return _OPS["elementwise"](_OPS["rms_norm"](rows, weight, eps, weight_offset=offset), factors, "mul")


def norm(operation, rows, weight, eps, bias=None, **further):
    """The norm that `norm_of` found."""
    if operation == "layer_norm":
        return _OPS["layer_norm"](rows, rows.shape[-1], weight, bias, eps, **further)
    return _OPS["rms_norm"](rows, weight, eps, **further)


def activation_of(function):
    """silu, gelu, gelu_tanh, relu, relu2 or quick_gelu if a module is that function, else None."""
    x = torch.linspace(-8, 8, 257, dtype=torch.float64, device="cpu")
    gelu = nn.functional.gelu
    kinds = {"silu": nn.functional.silu(x), "gelu": gelu(x), "gelu_tanh": gelu(x, approximate="tanh")}
    kinds |= {"relu": x.relu(), "relu2": x.relu().square(), "quick_gelu": x * torch.sigmoid(1.702 * x)}
    results: list[torch.Tensor] = []
    with torch.no_grad():
        if thresholds.why_bounded(function, lambda: results.append(function(x))) or not results:
            return None
    (actual,) = results
    # The two forms of gelu differ by 5e-4: the numbers of a bf16 model would not tell them apart.
    return next((name for name, kind in kinds.items() if torch.allclose(actual, kind, rtol=0, atol=1e-6)), None)


class GatedMlp(NamedTuple):
    """out(operation(into(x))): names of a module's parts, and of an operation; one part of `into` has gate and up packed.

    `silent` parts are those whose work the operation does: the activation's function, and dropouts, which do nothing in
    evaluation.
    """

    operation: str
    further: dict
    into: tuple[str, ...]
    out: str
    silent: tuple[str, ...]


# By activation: of gate and up, and of both packed.
_GATED = {
    "silu": (("swiglu", {}), ("silu_and_mul", {})),
    "gelu": (("geglu", {"approximate": "none"}), ("gated_activation", {"activation": "gelu"})),
    "gelu_tanh": (("geglu", {"approximate": "tanh"}), ("gated_activation", {"activation": "gelu_tanh"})),
}
_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def _parts_of(module):
    """(into, out, silent) by name of what may be a gated MLP, or None."""
    parts = module._modules
    if set(parts) == _MLP_PARTS:
        return ("gate_proj", "up_proj"), "down_proj", ("act_fn",)
    linears = [name for name, part in parts.items() if isinstance(part, nn.Linear)]
    dropouts = [name for name, part in parts.items() if isinstance(part, nn.Dropout)]
    functions = [name for name in parts if name not in (*linears, *dropouts)]
    if len(linears) != 2 or len(functions) != 1 or any(True for _ in parts[functions[0]].parameters()):
        return None
    for into, out in (linears, reversed(linears)):
        if parts[into].out_features == 2 * parts[out].in_features:
            return (into,), out, (*functions, *dropouts)
    return None


def looks_like_mlp(module):
    return set(module._modules) >= _MLP_PARTS or _parts_of(module) is not None


def mlp_of(module):
    """(GatedMlp, None) of a module that is out(activation(gate(x)) * up(x)), or (None, reason)."""
    found = _parts_of(module)
    if found is None:
        return None, "has other parts than gate_proj, up_proj, down_proj and act_fn"
    into, out, silent = found
    reason = why_not_plain(module)
    for name in (*into, out):
        reason = reason or why_not_linear(module._modules[name])
    for name in silent:
        reason = reason or why_not_plain(module._modules[name])
    if reason:
        return None, reason
    function = module._modules[silent[0]]
    activation = activation_of(function)
    if activation not in _GATED:
        return None, f"its activation {type(function).__name__} is neither SiLU nor GELU"
    mlp = GatedMlp(*_GATED[activation][len(into) == 1], *found)
    projection = module._modules[into[0]]
    rows = rows_for(projection.weight, projection.in_features)
    with torch.no_grad(), evaluating(module):
        expected, bound = _tried(module, rows)
        if not agrees_by_row(run_mlp(module, rows, mlp), expected):
            return None, f"computes something else than {out}({silent[0]}(gate) * up) by {' and '.join(into)}"
    return (None, bound) if bound else (mlp, None)


def are_silent(module, mlp, before):
    """True while the parts that `run_mlp` does not call are those of `before` and would do nothing else."""
    now = [module._modules.get(name) for name in mlp.silent]
    return now == before and not any(map(is_heard, now)) and not has_global_hooks()


def is_heard(part):
    """True for a part whose call does something else than at the time of `kernelize`, if its class is the same."""
    drops = part.training and isinstance(part, nn.Dropout)
    return drops or part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__


def run_mlp(module, rows, mlp):
    """What the gated MLP that `mlp_of` found makes of rows."""
    parts = module._modules
    return parts[mlp.out](_OPS[mlp.operation](*[parts[name](rows) for name in mlp.into], **mlp.further))
