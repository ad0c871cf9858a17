"""Torch reference of sampling.topk: any device, float64 inside."""

import runpy
from pathlib import Path

_sample = runpy.run_path(str(Path(__file__).parents[1] / "common" / "sampling.py"))["sample"]


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
