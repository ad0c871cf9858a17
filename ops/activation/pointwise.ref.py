"""Torch reference of activation.pointwise: any device, differentiable."""

import runpy
from pathlib import Path
from types import SimpleNamespace

_common = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "common" / "activation.py")))


def reference(input, function):
    return _common.activate(_common.wide(input), function).to(input.dtype)
