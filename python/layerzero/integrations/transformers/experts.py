"""Transformers' experts interface over LayerZero's fused mixture of experts, registered under the name "layerzero"."""

import torch
from transformers.integrations import moe

from layerzero import _layerzero
from layerzero.integrations.transformers import structure

NAME = "layerzero"
_fused_moe = _layerzero.ops["fused_moe"]


def looks_like_experts(module):
    """Experts whose forward asks Transformers' interface, by the attributes that it gives them."""
    return hasattr(module, "_is_expert_parallel") and hasattr(module, "is_transposed")


def why_not_experts(module):
    """None, or why the module's experts are not sum of weight * down(activation(gate(x)) * up(x))."""
    if not module.has_gate or module.has_post_expert_norm:
        return "experts without a gate, or with a norm of their own"
    if module.is_transposed or not module.is_concatenated:
        return "expert weights are stored transposed or interleaved"
    if getattr(type(module), "_apply_gate", None) is not moe._default_apply_gate:
        return "experts have a gate of their own"
    if module._is_expert_parallel:
        return "experts are spread over several devices"
    if structure.activation_of(module.act_fn) is None:
        return f"its activation {type(module.act_fn).__name__} is neither SiLU nor GELU"
    return structure.why_not_plain(module)


def layerzero_experts(self, hidden_states, top_k_index, top_k_weights):
    """hidden_states (tokens, d), indices and weights (tokens, k): (tokens, d)."""
    facts = self.__dict__.get("_layerzero_experts")
    activation = getattr(self, "act_fn", None)
    if facts is None or facts["act_fn"] is not activation:  # chosen by name alone, or changed since
        reason = why_not_experts(self)
        name = None if reason else structure.activation_of(activation)
        facts = self.__dict__["_layerzero_experts"] = {"act_fn": activation, "reason": reason, "name": name}
    changed = hidden_states.dtype != self.down_proj.dtype
    if facts["reason"] or changed or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return type(self).forward.__wrapped__(self, hidden_states, top_k_index, top_k_weights)
    structure.count_call(self)
    return _fused_moe(
        hidden_states,
        top_k_index,
        top_k_weights,
        self.gate_up_proj,
        self.down_proj,
        gate_bias=self.gate_up_proj_bias if self.has_bias else None,
        down_bias=self.down_proj_bias if self.has_bias else None,
        activation=facts["name"],
    )


def register():
    """Makes experts_implementation="layerzero" known; twice is harmless."""
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, layerzero_experts)
