"""Torch reference of sampling.topp: any device, float64 inside."""

import runpy
from pathlib import Path

_sample = runpy.run_path(str(Path(__file__).parents[1] / "common" / "sampling.py"))["sample"]


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
