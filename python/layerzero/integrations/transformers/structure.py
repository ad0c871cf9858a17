"""Which modules of a model may be a norm, a linear layer or an MLP: by their parameters and parts, never by class name. What their
code computes is read from its graph (`recognise.module`). Also the calls of operations that replace them.
"""

import contextlib
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

_OPS = _layerzero.ops
_LINEAR_STATE = {*nn.Linear(1, 1).__dict__, "_is_hf_initialized"}
_ANY = torch.nn.modules.module
_LARGEST_EPS = 1e-3


def rows_for(weight, width):
    """Rows of three magnitudes, so that a clamp, an offset or an epsilon shows."""
    rows = normal(3, width) + 0.5
    return (rows * torch.tensor([[1.0], [1 / 16], [16.0]], dtype=torch.float32, device="cpu")).to(weight)


def result_of(forward, *arguments):
    """The tensor that `forward` returns for arguments that it may not take; None if it raises or returns something else."""
    try:
        result = forward(*arguments)
    except Exception:
        return None
    return result if isinstance(result, torch.Tensor) else None


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
    """Whether each row agrees: over all rows at once the largest one would hide the others."""
    return expected is not None and actual.shape == expected.shape and all(map(agrees, actual, expected))


class Own:
    """The method that a module's class had when its forward was replaced; a copy of the module takes that of its first call."""

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
    """True for calls that the operations do not serve: with gradients, traced, or of a class that was changed since."""
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

    A subclass passes with torch.nn.Linear's own state alone, nothing its forward could depend on; what that does its graph shows.
    """
    reason = why_not_plain(module)
    if type(module) is nn.Linear or (reason and isinstance(module, nn.Linear)):
        return reason
    name = f"{type(module).__module__}.{type(module).__name__} is not exactly torch.nn.Linear"
    if not isinstance(module, nn.Linear) or type(module).forward is nn.Linear.forward:
        return name
    state = {member for member in module.__dict__ if not member.startswith("_layerzero_")} - _LINEAR_STATE
    return (
        name if state or module._buffers or module._modules or set(module._parameters) != {"weight", "bias"} else None
    )


def why_not_conv1d(module):
    """None, or why a module is not a plain linear layer whose weight is stored as [inputs, outputs]."""
    if type(module) is Conv1D:
        return why_not_plain(module)
    return f"{type(module).__module__}.{type(module).__name__} is not exactly Conv1D"


def packed_weight(module):
    """None, or the name and dtype of a weight that a module does not keep as floating-point numbers."""
    for name, held in (*module._parameters.items(), *module._buffers.items()):
        if "weight" in name and held is not None and not held.is_floating_point():
            return f"{type(module).__module__}.{type(module).__name__} holds {name} as {held.dtype}"
    return None


def eps_of(module):
    """The epsilon that a module keeps as an attribute or, if it keeps no tensors, that its code has as a constant; or None."""
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if eps is None and not _keeps_tensors(module):
        code = getattr(type(module).forward, "__code__", None)
        small = [c for c in getattr(code, "co_consts", ()) if type(c) is float and 0 < c <= _LARGEST_EPS]
        eps = small[0] if len(small) == 1 else None
    return float(eps) if isinstance(eps, (int, float)) else None


def _keeps_tensors(module):
    return any(held is not None for table in (module._parameters, module._buffers) for held in table.values())


def looks_like_norm(module):
    """Whether a module has an epsilon, and no other tensors than a weight vector and a bias: then it may be a norm."""
    weight = module._parameters.get("weight")
    named = set(module._parameters) <= {"weight", "bias"}
    plain = (named and weight.dim() == 1) if weight is not None else not _keeps_tensors(module)
    return plain and not module._modules and eps_of(module) is not None


def gated_norm(rows, gate, weight, eps, offset):
    """rms_norm of rows times the silu of a gate."""
    factors = _OPS["activation"](gate, "silu")
    return _OPS["elementwise"](_OPS["rms_norm"](rows, weight, eps, weight_offset=offset), factors, "mul")


def norm(operation, rows, weight, bias, eps, offset):
    """rms_norm or layer_norm of rows."""
    if operation == "layer_norm":
        return _OPS["layer_norm"](rows, rows.shape[-1], weight, bias, eps, weight_offset=offset)
    return _OPS["rms_norm"](rows, weight, eps, weight_offset=offset)


def has_dtype(weight, rows):
    """Whether rows have the weight's dtype, or autocast casts both: other rows the model's own code may cast."""
    return weight.dtype == rows.dtype or torch.is_autocast_enabled(rows.device.type)


def activation_of(function):
    """silu, gelu, gelu_tanh, relu, relu2 or quick_gelu if a module is that function of each number, else None."""
    large = torch.logspace(1, 38, 75, dtype=torch.float64, device="cpu")  # a bound shows there
    x = torch.cat([torch.linspace(-8, 8, 257, dtype=torch.float64, device="cpu"), large, -large])
    gelu = nn.functional.gelu
    kinds = {"silu": nn.functional.silu(x), "gelu": gelu(x), "gelu_tanh": gelu(x, approximate="tanh")}
    kinds |= {"relu": x.relu(), "relu2": x.relu().square(), "quick_gelu": x * torch.sigmoid(1.702 * x)}
    with torch.no_grad():
        actual = result_of(function, x)
    # The two forms of gelu differ by 5e-4, which bf16 would not show.
    return next((name for name, kind in kinds.items() if actual is not None and _are_close(actual, kind)), None)


def _are_close(actual, kind):
    return actual.dtype == kind.dtype and torch.allclose(actual, kind, rtol=1e-12, atol=1e-6)


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


_MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def looks_like_mlp(module):
    """Whether a module has the parts of a gated MLP: those of Llama's, or an activation and two linear layers, one with gate and up."""
    parts = [*module._modules.values()]
    if set(module._modules) >= _MLP_PARTS:
        return True
    linears = [part for part in parts if isinstance(part, nn.Linear)]
    functions = [part for part in parts if not isinstance(part, (nn.Linear, nn.Dropout))]
    if len(linears) != 2 or len(functions) != 1 or any(True for _ in functions[0].parameters()):
        return False
    return any(a.out_features == 2 * b.in_features for a, b in (linears, linears[::-1]))


def are_silent(module, mlp, before):
    """True while the parts that `run_mlp` does not call are still those of `before` and have no hooks."""
    now = [module._modules.get(name) for name in mlp.silent]
    return now == before and not any(map(is_heard, now)) and not has_global_hooks()


def is_heard(part):
    """True for a part of the same class whose call has another effect than at the time of `kernelize`."""
    drops = part.training and isinstance(part, nn.Dropout)
    return drops or part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__


def run_mlp(module, rows, mlp):
    """The result of the gated MLP that `mlp_of` found."""
    parts = module._modules
    return parts[mlp.out](_OPS[mlp.operation](*[parts[name](rows) for name in mlp.into], **mlp.further))
