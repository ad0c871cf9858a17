"""Shared by the torch references of the convolutions."""

import torch


def convolve(input, weight, bias, stride, padding, dilation, groups):
    """Convolution over len(stride) axes. torch refuses empty axes: where only padding is read, the result is
    written out."""
    if input.is_cuda and input.dtype == torch.float32:  # torch lets cuDNN round these to TF32
        wide = (None if t is None else t.double() for t in (input, weight, bias))
        return convolve(*wide, stride, padding, dilation, groups).float()
    if 0 in input.shape[2:]:
        input = torch.nn.functional.pad(input, [p for p in reversed(padding) for _ in range(2)])
        padding = [0] * len(padding)
    function = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[len(stride) - 1]
    return function(input, weight, bias, stride, padding, dilation, groups)
