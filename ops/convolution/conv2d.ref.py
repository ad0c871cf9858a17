"""Torch reference of convolution.conv2d: any device, differentiable."""

import torch


def reference(
    input, weight, bias=None, stride_h=1, stride_w=1, padding_h=0, padding_w=0, dilation_h=1, dilation_w=1, groups=1
):
    return torch.nn.functional.conv2d(
        input, weight, bias, (stride_h, stride_w), (padding_h, padding_w), (dilation_h, dilation_w), groups
    )
