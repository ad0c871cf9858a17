"""Torch reference of convolution.conv1d: any device, differentiable."""

import runpy
from pathlib import Path

_convolve = runpy.run_path(str(Path(__file__).parents[1] / "common" / "convolution.py"))["convolve"]


def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return _convolve(input, weight, bias, (stride,), (padding,), (dilation,), groups)
