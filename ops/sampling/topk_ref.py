"""Torch reference of sampling.topk: any device, float64 inside."""

from ..common.sampling import sample as _sample


def reference(
    logits,
    k=None,
    *,
    temperature=1.0,
    seed=None,
    offset=0,
    uniform=None,
    row_k=None,
    row_temperature=None,
    strict=False,
):
    return _sample(
        logits,
        k=k,
        temperature=temperature,
        seed=seed,
        offset=offset,
        uniform=uniform,
        row_k=row_k,
        row_temperature=row_temperature,
        strict=strict,
    )
