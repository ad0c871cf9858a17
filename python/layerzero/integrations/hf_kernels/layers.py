"""Layers as the library `kernels` takes them: stateless, the forward alone, which reads the module that it is bound to.

Named as Transformers' decorators name the layers that they may replace.
"""

import torch
from torch import nn

from .operations import activation, gated_activation, rms_norm, rope, silu_and_mul


def _norm(module, rows, offset):
    weight = module.weight
    eps = module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    if weight.dtype == rows.dtype:
        return rms_norm(rows, weight, eps, weight_offset=offset)
    wide = torch.promote_types(weight.dtype, rows.dtype)
    if not offset and _own_dtype(module, rows) != rows.dtype:  # such models round rows before the weight, as Llama's do
        return weight * rms_norm(rows, None, eps)
    return rms_norm(rows.to(wide), weight.to(wide), eps, weight_offset=offset).to(rows.dtype)


_OWN_DTYPES: dict = {}


def _own_dtype(module, rows):
    """The dtype that the module's own code returns: of the rows, or the wider one of rows and weight. Models differ."""
    own = type(module).forward
    if own is RMSNorm.forward:
        return rows.dtype
    key = own, module.weight.dtype, rows.dtype
    found = None if torch.compiler.is_compiling() else _OWN_DTYPES.get(key)
    if found is None:
        with torch.no_grad():
            found = own(module, rows.reshape(-1, rows.shape[-1])[:1]).dtype
        if not torch.compiler.is_compiling():
            _OWN_DTYPES[key] = found
    return found


class RMSNorm(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        return _norm(self, hidden_states, 0.0)


class RMSNormZeroCentered(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return _norm(self, x, 1.0)


class SiluAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return silu_and_mul(x)


class GeluAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return gated_activation(x, activation="gelu")


class GeluTanhAndMul(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, x):
        return gated_activation(x, activation="gelu_tanh")


class SiLU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return activation(input, "silu")


class GeLU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return activation(input, "gelu")


class GeluTanh(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return activation(input, "gelu_tanh")


class NewGELU(GeluTanh):
    pass


class FastGELU(GeluTanh):
    pass


class QuickGELU(nn.Module):
    can_torch_compile = True
    has_backward = True

    def forward(self, input):
        return activation(input, "quick_gelu")


class rotary_pos_emb(nn.Module):  # noqa: N801  the name of a function of Transformers
    can_torch_compile = True
    has_backward = True

    def forward(self, q, k, cos, sin, unsqueeze_dim=1):
        if unsqueeze_dim == 1:
            return rope(q, cos, sin, layout="BHSD"), rope(k, cos, sin, layout="BHSD")
        return rope(q, cos, sin, layout="BSHD"), rope(k, cos, sin, layout="BSHD")
