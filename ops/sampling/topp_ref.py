"""Torch reference of sampling.topp: any device, float64 inside."""

from ..common.sampling import sample as _sample


def reference(
    logits,
    p=None,
    *,
    temperature=1.0,
    seed=None,
    offset=0,
    uniform=None,
    row_p=None,
    row_temperature=None,
    strict=False,
):
    return _sample(
        logits,
        p=p,
        temperature=temperature,
        seed=seed,
        offset=offset,
        uniform=uniform,
        row_p=row_p,
        row_temperature=row_temperature,
        strict=strict,
    )
