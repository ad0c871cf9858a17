"""Torch reference of convolution.conv3d: any device, differentiable."""

from ..common.convolution import convolve as _convolve


def reference(
    input, weight, bias=None, stride_d=1, stride_h=1, stride_w=1, padding_d=0, padding_h=0, padding_w=0,
    dilation_d=1, dilation_h=1, dilation_w=1, groups=1,
):  # fmt: skip
    return _convolve(
        input,
        weight,
        bias,
        (stride_d, stride_h, stride_w),
        (padding_d, padding_h, padding_w),
        (dilation_d, dilation_h, dilation_w),
        groups,
    )
