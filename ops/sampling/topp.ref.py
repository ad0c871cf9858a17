"""Torch reference of sampling.topp: any device, float64 inside."""

import importlib.util
import pathlib

_spec = importlib.util.spec_from_file_location(
    "layerzero_ops_common_sampling", pathlib.Path(__file__).parents[1] / "common" / "sampling.py"
)
_sampling = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_sampling)


def reference(logits, p, *, temperature=1.0, seed=0, offset=0):
    return _sampling.sample(logits, p=p, temperature=temperature, seed=seed, offset=offset)
