"""Torch reference of pooling.pool1d: any device, differentiable."""

from torch.nn import functional as F


def reference(input, window, stride, padding=0, *, mode, count_include_pad=True):
    x = input.reshape(input.shape[:-1].numel(), 1, *input.shape[-1:])
    shape = window, min(stride, 2**31 - 1), padding  # torch's steps are int32; a larger step leaves one window
    output = F.max_pool1d(x, *shape) if mode == "max" else F.avg_pool1d(x, *shape, False, count_include_pad)
    return output.reshape(*input.shape[:-1], *output.shape[2:])
