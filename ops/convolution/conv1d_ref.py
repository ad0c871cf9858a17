"""Torch reference of convolution.conv1d: any device, differentiable."""

from ..common.convolution import convolve as _convolve


def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return _convolve(input, weight, bias, (stride,), (padding,), (dilation,), groups)
