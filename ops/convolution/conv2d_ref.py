"""Torch reference of convolution.conv2d: any device, differentiable."""

from ..common.convolution import convolve as _convolve


def reference(
    input, weight, bias=None, stride_h=1, stride_w=1, padding_h=0, padding_w=0, dilation_h=1, dilation_w=1, groups=1
):
    return _convolve(
        input, weight, bias, (stride_h, stride_w), (padding_h, padding_w), (dilation_h, dilation_w), groups
    )
