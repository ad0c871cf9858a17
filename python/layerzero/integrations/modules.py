"""What integrations that replace the parts of a model share: when two results are the same, inputs for trials, bound forwards and
what becomes of them in copies."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Relative L2 error within which a module and the operation agree, by dtype; two correct bf16 models differ this much.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def agrees(actual: torch.Tensor, expected: torch.Tensor, slack: float = 1.0) -> bool:
    """True where two results are the same function's within the dtype's rounding; a whole model has more of it."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    error = torch.linalg.vector_norm(actual.double() - expected.double())
    return bool(error <= slack * TOLERANCE[expected.dtype] * torch.linalg.vector_norm(expected.double()))


def normal(*shape: int, seed: int = 7) -> torch.Tensor:
    """The same numbers each time, whatever default device, default dtype and seed are in force."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


class Method:
    """What takes the place of a method in the dictionary of one module."""


class Bound(functools.partial, Method):
    """A function bound to a module as a method is, but one that can be pickled."""

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __self__(self) -> Any:
        return self.args[0]


# ---- copies: deep ones and pickles are replaced as their model is. What copy.copy and torch.nn.DataParallel make has the same entries in
# its dictionary, methods bound to the first module among them: it gets its class's own code back.

OWN_FORWARD = "_layerzero_own_forward"  # in the dictionary of a module: the forward that a library had set on it before
_PREFIX = "_layerzero_"
_REPLICA, _REDUCE, _SET_STATE = "_replicate_for_data_parallel", "__reduce_ex__", "__setstate__"


def bind(module: nn.Module, function: Callable[..., Any], name: str = "forward") -> None:
    """Sets a method of one module."""
    module.__dict__[name] = Bound(function, module)
    watch_copies(module)


def watch_copies(module: nn.Module) -> None:
    """Makes copies that share the module's state run their class's own code."""
    module.__dict__[_REPLICA] = Bound(_replicate, module)
    module.__dict__[_REDUCE] = Bound(_reduce, module)


def forget_copies(module: nn.Module) -> None:
    """Undoes `watch_copies`."""
    for name, function in ((_REPLICA, _replicate), (_REDUCE, _reduce)):
        if getattr(module.__dict__.get(name), "func", None) is function:
            del module.__dict__[name]


def _replicate(self: Any) -> Any:
    replica = type(self)._replicate_for_data_parallel(self)
    _run_own_code(replica)
    return replica


def _reduce(self: Any, protocol: Any) -> Any:
    """By it copy.copy, copy.deepcopy and pickle read a module."""
    kind: Any = type(self)
    reduced = kind.__reduce_ex__(self, protocol)
    if len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    make, given, *rest = reduced
    return _made, (make, *given), *rest


def _made(make: Callable[..., Any], *given: Any) -> Any:
    module = make(*given)
    module.__dict__[_SET_STATE] = Bound(_set_state, module)
    return module


def _set_state(self: Any, state: dict[str, Any]) -> None:
    del self.__dict__[_SET_STATE]
    type(self).__setstate__(self, state)
    if getattr(self.__dict__.get(_REDUCE), "__self__", None) is not self:  # copy.copy passes the state as it is
        _run_own_code(self)


def _run_own_code(copied: Any) -> None:
    own = copied.__dict__.get(OWN_FORWARD)
    for name, value in list(copied.__dict__.items()):
        if name.startswith(_PREFIX) or isinstance(value, Method):
            del copied.__dict__[name]
    if own is not None:
        copied.__dict__.setdefault("forward", own)
