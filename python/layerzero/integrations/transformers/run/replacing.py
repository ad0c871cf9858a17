"""Replaces the forward of a module."""

import functools
import inspect

from layerzero.integrations.transformers import counts, structure

REPLICA = "_replicate_for_data_parallel"


def replace(module, function, part, **facts):
    """Sets a forward that counts its calls in `part`; `unkernelize` finds it by its function.

    Without the facts in the module's __dict__ the new forward runs the module's own code, so a wrapper that kept it, such as
    accelerate's hooks, works after `unkernelize` too.
    """
    module.__dict__["_layerzero_part"] = part
    for name, value in facts.items():
        module.__dict__[f"_layerzero_{name}"] = value
    module.__dict__["_layerzero_own"] = structure.Own().of(type(module))
    module.__dict__[REPLICA] = structure.Bound(replica, module)
    module.__dict__["forward"] = structure.Bound(function, module)


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


def replica(self):
    """Replaces `_replicate_for_data_parallel`: replicas of torch.nn.DataParallel have their own weights and run the module's own code."""
    copy = type(self)._replicate_for_data_parallel(self)
    for name in ("forward", REPLICA, *(name for name in copy.__dict__ if name.startswith("_layerzero_"))):
        copy.__dict__.pop(name, None)
    return copy


def is_served(module, function):
    return getattr(module.__dict__.get("forward"), "func", None) is function
