"""Torch reference of pooling.pool2d: any device, differentiable."""

from torch.nn import functional as F


def reference(input, window_h, window_w, stride_h, stride_w, padding_h=0, padding_w=0, *, mode, count_include_pad=True):
    x = input.reshape(input.shape[:-2].numel(), 1, *input.shape[-2:])
    stride = min(stride_h, 2**31 - 1), min(stride_w, 2**31 - 1)  # torch's are int32; a larger one leaves one window
    shape = (window_h, window_w), stride, (padding_h, padding_w)
    output = F.max_pool2d(x, *shape) if mode == "max" else F.avg_pool2d(x, *shape, False, count_include_pad)
    return output.reshape(*input.shape[:-2], *output.shape[2:])
