"""Transformers' experts interface over LayerZero's fused mixture of experts, registered under the name "layerzero"."""

import torch
from transformers.integrations import moe

from layerzero import _layerzero
from layerzero.integrations.transformers import structure

NAME = "layerzero"
_fused_moe = _layerzero.ops["fused_moe"]
_gated_activation = _layerzero.ops["gated_activation"]


def looks_like_experts(module):
    """Experts whose forward asks Transformers' interface, by the attributes that it gives them."""
    return hasattr(module, "is_transposed") and hasattr(module, "is_concatenated")


def why_not_experts(module):
    """None, or why the module's experts are not sum of weight * down(activation(gate(x)) * up(x))."""
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        return "experts without a gate, or with a norm of their own"
    if module.is_transposed or not module.is_concatenated:
        return (
            "expert weights are stored transposed or interleaved: the kernels read rows, and a copy would double them"
        )
    if getattr(type(module), "_apply_gate", None) is not moe._default_apply_gate:
        return "experts have a gate of their own"
    if getattr(module, "_is_expert_parallel", False):
        return "experts are spread over several devices"
    activation = structure.activation_of(module.act_fn)
    if activation is None:
        return f"its activation {type(module.act_fn).__name__} is neither SiLU nor GELU"
    return structure.why_not_plain(module) or _why_other_numbers(module, activation)


def _why_other_numbers(module, activation):
    own = getattr(type(module).forward, "__wrapped__", None)
    if own is None:
        return "its forward does not ask the experts interface"
    rows = structure.rows_for(module.down_proj, module.gate_up_proj.shape[-1])
    ids = torch.arange(6, device=rows.device).reshape(3, 2) % module.down_proj.shape[0]
    weights = torch.tensor([[0.75, 0.25]], device=rows.device).expand(3, 2).to(rows.dtype)
    with torch.no_grad():
        expected = structure.result_of(own, module, rows, ids, weights)
        if structure.agrees_by_row(_call(module, rows, ids, weights, activation), expected):
            return None
    return "computes something else than the weighted sum of down(activation(gate(x)) * up(x))"


def gate_of(module):
    """Arguments of gated_activation that make it the gate of its experts in a form of its own, or None."""
    limit, alpha = getattr(module, "limit", None), getattr(module, "alpha", None)
    if not isinstance(limit, float) or not isinstance(alpha, float) or structure.why_not_plain(module):
        return None
    given = {
        "activation": "silu",
        "limit": limit,
        "alpha": alpha,
        "up_offset": 1.0,
        "interleaved": not module.is_concatenated,
    }
    rows = structure.rows_for(module.down_proj, 64)
    with torch.no_grad():
        expected = structure.result_of(type(module)._apply_gate, module, rows)
        alike = structure.agrees_by_row(_gated_activation(rows, **given), expected)
    return given if alike else None


def apply_gate(self, gate_up):
    """Takes the place of the gate that a class of experts has of its own."""
    given = self.__dict__.get("_layerzero_gate")
    changed = given is None or given["limit"] != self.limit or given["alpha"] != self.alpha
    if changed or structure.takes_own_code(self) or not structure.are_readable(gate_up):
        return type(self)._apply_gate(self, gate_up)
    structure.count_call(self)
    return _gated_activation(gate_up, **given)


def replace_gate(module, given, part):
    own = structure.Own("_apply_gate").of(type(module))
    module.__dict__ |= {"_layerzero_part": part, "_layerzero_gate": given, "_layerzero_own": own}
    module.__dict__["_apply_gate"] = structure.Bound(apply_gate, module)


def judge(module):
    """Tries the module, and leaves in it what `layerzero_experts` has to know."""
    activation, reason = getattr(module, "act_fn", None), why_not_experts(module)
    name = None if reason else structure.activation_of(activation)
    facts = module.__dict__["_layerzero_experts"] = {"act_fn": activation, "reason": reason, "name": name}
    return facts


def layerzero_experts(self, hidden_states, top_k_index, top_k_weights):
    """hidden_states (tokens, d), indices and weights (tokens, k): (tokens, d)."""
    traced = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if traced or not structure.are_readable(hidden_states):
        return _own(self)(self, hidden_states, top_k_index, top_k_weights)
    facts = self.__dict__.get("_layerzero_experts")
    if facts is None or facts["act_fn"] is not getattr(self, "act_fn", None):  # chosen by name alone, or changed since
        facts = judge(self)
    if facts["reason"] or _is_changed(self, hidden_states.dtype):
        return _own(self)(self, hidden_states, top_k_index, top_k_weights)
    structure.count_call(self)
    return _call(self, hidden_states, top_k_index, top_k_weights, facts["name"])


def _own(module):
    """The experts that the model had before `kernelize`; without that, those of its class."""
    forward = type(module).forward
    own = getattr(forward, "__wrapped__", forward)
    name = module.__dict__.get("_layerzero_own_experts")
    return own if name is None else moe.ALL_EXPERTS_FUNCTIONS.get_interface(name, own)


def _is_changed(module, dtype):
    """True for what `judge` did not see: hooks on the activation, another gate, other tensors in place of the weights."""
    weights = module.gate_up_proj, module.down_proj
    plain = all(type(weight) is torch.nn.Parameter and weight.dtype == dtype for weight in weights)
    gate = module.__dict__.get("_apply_gate", getattr(type(module), "_apply_gate", None))
    return (
        not plain
        or gate is not moe._default_apply_gate
        or structure.is_heard(module.act_fn)
        or structure.has_global_hooks()
    )


def _call(module, rows, ids, weights, activation):
    return _fused_moe(
        rows,
        ids,
        weights,
        module.gate_up_proj,
        module.down_proj,
        gate_bias=module.gate_up_proj_bias if module.has_bias else None,
        down_bias=module.down_proj_bias if module.has_bias else None,
        activation=activation,
    )


def register():
    """Makes experts_implementation="layerzero" known; twice is harmless."""
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, layerzero_experts)
