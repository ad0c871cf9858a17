"""Linear layers as GPTQ and AWQ checkpoints store them, eight 4-bit columns in an int32, with their arithmetic in torch.

Their own packages need a GPU or build against one installed torch; what `kernelize` meets is the form of such modules.
"""

import torch
from torch import nn

BITS, PER_WORD = 4, 8
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # AWQ stores the columns of a word in this order


def pack(values, order=range(PER_WORD)):
    """(rows, columns) of 0..15 -> (rows, columns / 8) int32."""
    words = torch.zeros(values.shape[0], values.shape[1] // PER_WORD, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= values[:, column::PER_WORD].long() << (BITS * place)
    return words.to(torch.int32)


def unpack(words, order=range(PER_WORD)):
    values = torch.empty(words.shape[0], words.shape[1] * PER_WORD, dtype=torch.int64)
    for place, column in enumerate(order):
        values[:, column::PER_WORD] = (words.long() >> (BITS * place)) & 15
    return values


class GroupedLinear(nn.Module):
    """weight[in, out] = (q - zero) * scale, with a zero and a scale for each group of input rows."""

    def __init__(self, linear, group):
        super().__init__()
        self.in_features, self.out_features, self.group_size = linear.in_features, linear.out_features, group
        weight = linear.weight.detach().T.float()
        groups = weight.reshape(-1, group, self.out_features)
        low, high = groups.amin(1), groups.amax(1)
        scales = (high - low).clamp(min=1e-6) / 15
        zeros = (-low / scales).round().clamp(0, 15)
        values = (groups / scales[:, None] + zeros[:, None]).round().clamp(0, 15).reshape(weight.shape)
        self.register_buffer("scales", scales)
        self.register_buffer("qweight", self.stored(values))
        self.register_buffer("qzeros", pack(zeros, self.order))
        self.bias = linear.bias

    def forward(self, rows):
        groups = self.values().reshape(-1, self.group_size, self.out_features)
        zeros = unpack(self.qzeros, self.order)
        weight = ((groups - zeros[:, None]) * self.scales[:, None]).reshape(self.in_features, -1).to(rows.dtype)
        out = rows @ weight
        return out if self.bias is None else out + self.bias


class GPTQLinear(GroupedLinear):
    """qweight (in / 8, out): eight input rows in a word; g_idx: the group of each input row."""

    order = range(PER_WORD)

    def __init__(self, linear, group=32):
        super().__init__(linear, group)
        self.register_buffer("g_idx", (torch.arange(self.in_features) // group).to(torch.int32))

    def stored(self, values):
        return pack(values.T).T.contiguous()

    def values(self):
        return unpack(self.qweight.T).T


class AWQLinear(GroupedLinear):
    """qweight (in, out / 8): eight output columns in a word, in AWQ's order."""

    order = AWQ_ORDER

    def __init__(self, linear, group=32):
        super().__init__(linear, group)

    def stored(self, values):
        return pack(values, self.order)

    def values(self):
        return unpack(self.qweight, self.order)


class PackedWeightLinear(GPTQLinear):
    """A module that calls its integers `weight`, as a linear layer does."""

    def __init__(self, linear, group=32):
        super().__init__(linear, group)
        self.weight = nn.Parameter(self._buffers.pop("qweight"), requires_grad=False)

    @property
    def qweight(self):
        return self.weight


def quantise(model, kind):
    """Every linear layer of a model but its head, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and name != "lm_head":
                setattr(parent, name, kind(child))
    return model
