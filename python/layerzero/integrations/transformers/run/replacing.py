"""How a module gets another forward, which `unkernelize` finds again by its function."""

import functools
import inspect

from layerzero.integrations.transformers import counts, structure

REPLICA = "_replicate_for_data_parallel"


def replace(module, function, part, **facts):
    """Sets a forward of one module that counts its calls in `part`; `unkernelize` finds it by its function.

    Without its facts the forward is the module's own, so a wrapper that kept it (accelerate's hooks do) works after
    `unkernelize` too.
    """
    module.__dict__["_layerzero_part"] = part
    for name, value in facts.items():
        module.__dict__[f"_layerzero_{name}"] = value
    module.__dict__["_layerzero_own"] = structure.Own().of(type(module))
    module.__dict__[REPLICA] = structure.Bound(replica, module)
    module.__dict__["forward"] = structure.Bound(function, module)


def of_rows(compute):
    """The forward of a module that takes tensors: `compute`, or the module's own code if that returns None."""
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
    """Takes the place of a method: copies of torch.nn.DataParallel have weights of their own, and run their own code."""
    copy = type(self)._replicate_for_data_parallel(self)
    for name in ("forward", REPLICA, *(name for name in copy.__dict__ if name.startswith("_layerzero_"))):
        copy.__dict__.pop(name, None)
    return copy


def is_served(module, function):
    return getattr(module.__dict__.get("forward"), "func", None) is function
