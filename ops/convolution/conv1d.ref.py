"""Torch reference of convolution.conv1d: any device, differentiable."""

import torch


def reference(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    return torch.nn.functional.conv1d(input, weight, bias, stride, padding, dilation, groups)
