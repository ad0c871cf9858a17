"""Torch reference of pooling.pool2d: any device, differentiable."""

from torch.nn import functional as F


def reference(input, window_h, window_w, stride_h, stride_w, padding_h=0, padding_w=0, *, mode, count_include_pad=True):
    x = input.reshape(input.shape[:-2].numel(), 1, *input.shape[-2:])
    shape = (window_h, window_w), (stride_h, stride_w), (padding_h, padding_w)
    output = F.max_pool2d(x, *shape) if mode == "max" else F.avg_pool2d(x, *shape, False, count_include_pad)
    return output.reshape(*input.shape[:-2], *output.shape[2:])
