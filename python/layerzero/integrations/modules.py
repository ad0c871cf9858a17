"""What integrations that replace the parts of a model share: when two results are the same, inputs for trials, bound forwards."""

import functools
from typing import Any

import torch

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


class Bound(functools.partial):
    """A function bound to a module as a method is, but one that can be pickled."""

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __self__(self) -> Any:
        return self.args[0]
