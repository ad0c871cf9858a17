"""Replaces the forward of a module."""

import functools
import inspect

from layerzero.integrations.modules import bind
from layerzero.integrations.transformers import counts, structure


def replace(module, function, part, **facts):
    """Sets a forward that counts its calls in `part`; `unkernelize` finds it by its function.

    Without the facts in the module's __dict__ the new forward runs the module's own code, so a wrapper that kept it, such as
    accelerate's hooks, works after `unkernelize` too.
    """
    module.__dict__["_layerzero_part"] = part
    for name, value in facts.items():
        module.__dict__[f"_layerzero_{name}"] = value
    module.__dict__["_layerzero_own"] = structure.Own().of(type(module))
    bind(module, function)


def of_rows(compute):
    """A forward that calls `compute` with the tensors, and the module's own code if `compute` returns None."""
    count = len(inspect.signature(compute).parameters) - 1

    @functools.wraps(compute)
    def forward(self, *args, **kwargs):
        given = len(args) == count and not kwargs
        if given and not structure.takes_own_code(self) and all(map(structure.are_readable, args)):
            result = compute(self, *args)
            if result is not None:
                counts.count_call(self)
                return result
        return type(self).forward(self, *args, **kwargs)

    return forward


def is_served(module, function):
    return getattr(module.__dict__.get("forward"), "func", None) is function
