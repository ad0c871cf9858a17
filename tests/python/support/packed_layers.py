"""Linear layers as GPTQ and AWQ checkpoints store them, columns of 4 or 8 bits in an int32, with their arithmetic in torch.

Their own packages need a GPU or build against one installed torch; what `kernelize` meets is the form of such modules.
"""

import torch
from torch import nn

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AWQ stores the columns of a word in this order


def pack(values, bits=4, order=None):
    """(rows, columns) of unsigned integers -> (rows, columns * bits / 32) int32."""
    order = order or range(32 // bits)
    words = torch.zeros(values.shape[0], values.shape[1] // len(order), dtype=torch.int64, device=values.device)
    for place, column in enumerate(order):
        words |= values[:, column :: len(order)].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack(words, bits=4, order=None):
    order = order or range(32 // bits)
    values = torch.empty(words.shape[0], words.shape[1] * len(order), dtype=torch.int64, device=words.device)
    for place, column in enumerate(order):
        values[:, column :: len(order)] = (words.long() >> (bits * place)) & ((1 << bits) - 1)
    return values


class GroupedLinear(nn.Module):
    """weight[in, out] = (q - zero) * scale, with a zero and a scale for each group of input rows."""

    bits, order, stored_zero, symmetric = 4, None, 0, False  # stored_zero: what is added to a zero when it is stored

    def __init__(self, linear, group=32):
        super().__init__()
        self.in_features, self.out_features, self.group_size = linear.in_features, linear.out_features, group
        weight, most = linear.weight.detach().T.float(), (1 << self.bits) - 1
        groups = weight.reshape(-1, group, self.out_features)
        low, high = groups.amin(1), groups.amax(1)
        if self.symmetric:
            scales = groups.abs().amax(1) / (most // 2)
            zeros = torch.full_like(scales, (most + 1) // 2)
        else:
            scales = (high - low).clamp(min=1e-6) / most
            zeros = (-low / scales).round().clamp(1, most)
        scales = scales.to(linear.weight.dtype)
        values = (groups / scales[:, None].float() + zeros[:, None]).round().clamp(0, most).reshape(weight.shape)
        self.register_buffer("scales", scales)
        self.register_buffer("qweight", self.stored(values))
        self.register_buffer("qzeros", pack(zeros.long() + self.stored_zero, self.bits, self.order))
        self.bias = linear.bias

    def dequantised(self):
        """(in, out), rounded to the dtype of the scales."""
        groups = self.values().reshape(-1, self.group_size, self.out_features)
        zeros = unpack(self.qzeros, self.bits, self.order) - self.stored_zero
        return ((groups - zeros[:, None]) * self.scales[:, None]).reshape(self.in_features, -1)

    def forward(self, rows):
        out = rows @ self.dequantised().to(rows.dtype)
        return out if self.bias is None else out + self.bias


class GPTQLinear(GroupedLinear):
    """qweight (in / 8, out): eight input rows in a word; g_idx: the group of each input row."""

    def __init__(self, linear, group=32):
        super().__init__(linear, group)
        self.register_buffer("g_idx", (torch.arange(self.in_features) // group).to(torch.int32))

    def stored(self, values):
        return pack(values.T, self.bits).T.contiguous()

    def values(self):
        return unpack(self.qweight.T, self.bits).T


class OldGPTQLinear(GPTQLinear):
    """The first version of the format: each zero is stored minus 1."""

    stored_zero = -1


class SymmetricGPTQLinear(GPTQLinear):
    stored_zero, symmetric = -1, True


class EightBitGPTQLinear(GPTQLinear):
    bits = 8


class AWQLinear(GroupedLinear):
    """qweight (in, out / 8): eight output columns in a word, in AWQ's order."""

    order = AWQ_ORDER

    def stored(self, values):
        return pack(values, self.bits, self.order)

    def values(self):
        return unpack(self.qweight, self.bits, self.order)


class PackedWeightLinear(GPTQLinear):
    """A module that calls its integers `weight`, as a linear layer does: of no known format."""

    def __init__(self, linear, group=32):
        super().__init__(linear, group)
        self.weight = nn.Parameter(self._buffers.pop("qweight"), requires_grad=False)

    def values(self):
        return unpack(self.weight.T, self.bits).T


def quantise(model, kind):
    """Every linear layer of a model but its head, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and name != "lm_head":
                setattr(parent, name, kind(child))
    return model
