"""Torch reference of mlp.linear.prepack: any device."""

import torch


def reference(weight):
    codes = torch.stack([weight & 15, weight >> 4], -1).reshape(weight.shape[0], weight.shape[1] // 16, 2, 16)
    return (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(weight.shape)
