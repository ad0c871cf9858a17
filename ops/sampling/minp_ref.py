"""Torch reference of sampling.minp: any device, float64 inside."""

from ..common.sampling import sample as _sample


def reference(
    logits,
    min_p=None,
    *,
    temperature=1.0,
    seed=None,
    offset=0,
    uniform=None,
    row_min_p=None,
    row_temperature=None,
    strict=False,
):
    return _sample(
        logits,
        min_p=min_p,
        temperature=temperature,
        seed=seed,
        offset=offset,
        uniform=uniform,
        row_min_p=row_min_p,
        row_temperature=row_temperature,
        strict=strict,
    )
