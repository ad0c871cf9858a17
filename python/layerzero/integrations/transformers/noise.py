"""How far rounding moves the rows of a model with experts, in its own code.

Two right ways to compute a model differ by rounding. Where the scores of two experts are nearly tied, that changes which
one a row gets, and from there on the row is another one. So results in 16 bits are compared row by row with what the model
gives when the rows that each layer reads are moved by half a step of their dtype.
"""

import contextlib

import torch

from layerzero.integrations.transformers import experts, structure

_DRAWS = 6
_SLACK = 2.0  # between the largest of so many draws and what is taken for noise
_MORE = 8  # one of so many rows, and one more, may have changed beside those of the draws


def may_choose_otherwise(model, rows):
    """Whether rounding may change the experts of `rows`, a result of the model."""
    few_bits = rows is not None and rows.dtype in (torch.bfloat16, torch.float16)
    return few_bits and any(map(experts.looks_like_experts, model.modules()))


def spread_of(run, layers):
    """The relative error of each row of what `run()` gives, in ascending order: the largest of some draws.

    None where a run gives nothing.
    """
    with _moved(layers, None):
        plain = run()
    errors = []
    for seed in range(_DRAWS):
        with _moved(layers, torch.Generator("cpu").manual_seed(seed)):
            moved = run()
        if plain is None or moved is None:
            return None
        errors.append(_errors(moved, plain))
    return torch.stack(errors).amax(0)


def is_within(actual, expected, spread):
    """True where hardly more rows of a result differ than rounding moves, and none of them much further.

    Where rounding moves most rows beyond the usual tolerance, it would hide faults: False.
    """
    if actual is None or spread is None or actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    tolerance = structure.tolerance_of(expected.dtype)
    if spread.median() > 1.5 * tolerance:
        return False
    allowed = torch.cat([spread, spread[-1:].expand(len(spread) // _MORE + 1)])[-len(spread) :]
    return bool((_errors(actual, expected) <= (_SLACK * allowed).clamp_min(tolerance)).all())


def _errors(actual, expected):
    """Of each row, in ascending order; of a result that is no rows, of all its numbers."""
    width = expected.shape[-1]
    difference = (actual.double() - expected.double()).reshape(-1, width).norm(dim=-1)
    return (difference / expected.double().reshape(-1, width).norm(dim=-1)).sort().values


def _is_rows(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextlib.contextmanager
def _moved(layers, generator):
    """Rows that a layer reads are moved by at most half a step; without a generator they are as they are."""

    def move(rows):
        shift = torch.rand(rows.shape, generator=generator, device="cpu") - 0.5
        return (rows.float() * (1 + torch.finfo(rows.dtype).eps * shift.to(rows.device))).to(rows.dtype)

    def before(_, args, kwargs):
        given = {**dict(enumerate(args)), **kwargs}
        rows = next((at for at, value in given.items() if _is_rows(value)), None)
        if generator is not None and rows is not None:
            given[rows] = move(given[rows])
        return tuple(given[at] for at in range(len(args))), {name: given[name] for name in kwargs}

    handles = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
