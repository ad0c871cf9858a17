"""Transformers' experts interface over LayerZero's fused mixture of experts, registered under the name "layerzero"."""

import torch
from transformers.integrations import moe

from layerzero import _layerzero
from layerzero.integrations.modules import bind
from layerzero.integrations.transformers import counts, structure
from layerzero.integrations.transformers.layers import Gate

NAME = "layerzero"
_fused_moe = _layerzero.ops["fused_moe"]
_gated_activation = _layerzero.ops["gated_activation"]


def looks_like_experts(module):
    """Whether a module has experts that use Transformers' experts interface, by the attributes that the interface sets."""
    return hasattr(module, "is_transposed") and hasattr(module, "is_concatenated")


def gate_of(module):
    """(Gate, None) if experts compute the weighted sum of down(gate(up(x))), else (None, reason)."""
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        return None, "experts without a gate, or with a norm of their own"
    if getattr(module, "_is_expert_parallel", False):
        return None, "experts are spread over several devices"
    reason = structure.why_not_plain(module)
    gate, reason = (None, reason) if reason else _gate_alone(module)
    return (None, reason) if reason else _tried(module, gate)


def _gate_alone(module):
    if type(module)._apply_gate is not moe._default_apply_gate:
        gate = own_gate_of(module)
        return gate, None if gate else "experts have a gate of their own, which is none that the operations know"
    if not module.is_concatenated:
        return None, "expert weights are interleaved, and the gate takes halves"
    activation = structure.activation_of(module.act_fn)
    if activation is None:
        return None, f"its activation {type(module.act_fn).__name__} is neither SiLU nor GELU"
    return Gate(activation), None


def _tried(module, gate):
    own = getattr(type(module).forward, "__wrapped__", None)
    if own is None:
        return None, "its forward does not ask the experts interface"
    rows = structure.rows_for(module.down_proj, sizes_of(module)[1])
    ids = torch.arange(6, device=rows.device).reshape(3, 2) % module.down_proj.shape[0]
    # Sums other than 1, and others in each row: code that changes the weights shows.
    weights = torch.tensor([[0.75, 0.5], [0.25, 1.5], [1.0, 0.125]], device=rows.device).to(rows.dtype)
    with torch.no_grad():
        expected = structure.result_of(own, module, rows, ids, weights)
        if structure.agrees_by_row(_call(module, rows, ids, weights, gate), expected):
            return gate, None
    return None, "computes something else than the weighted sum of down(activation(gate(x)) * up(x))"


def sizes_of(module):
    """(experts, width of a row)."""
    experts, *sizes = module.gate_up_proj.shape
    return experts, sizes[0 if module.is_transposed else 1]


def own_gate_of(module):
    """The Gate of a class of experts with its own form of gate, with a limit; None if it is another form."""
    limit, alpha = getattr(module, "limit", None), getattr(module, "alpha", None)
    if not isinstance(limit, float) or not isinstance(alpha, float) or structure.why_not_plain(module):
        return None
    gate = Gate("silu", limit, alpha, up_offset=1.0, interleaved=not module.is_concatenated)
    rows = structure.rows_for(module.down_proj, 64)
    rows = torch.cat([rows, rows * limit])  # some beyond it
    with torch.no_grad():
        expected = structure.result_of(type(module)._apply_gate, module, rows)
        alike = limit > 0 and structure.agrees_by_row(_gated_activation(rows, **gate.arguments), expected)
    return gate if alike else None


def apply_gate(self, gate_up):
    """Replaces the gate of a class of experts that has its own form of gate."""
    given = self.__dict__.get("_layerzero_gate")
    changed = given is None or given.limit != self.limit or given.alpha != self.alpha
    if changed or structure.takes_own_code(self) or not structure.are_readable(gate_up):
        return type(self)._apply_gate(self, gate_up)
    counts.count_call(self)
    return _gated_activation(gate_up, **given.arguments)


def replace_gate(module, given, part):
    own = structure.Own("_apply_gate").of(type(module))
    module.__dict__ |= {"_layerzero_part": part, "_layerzero_gate": given, "_layerzero_own": own}
    bind(module, apply_gate, "_apply_gate")


_READ = ("act_fn", "limit", "alpha")  # what a gate of a class of experts reads of them


def judge(module, found):
    """Stores in the module the facts that `layerzero_experts` reads. found: the result of `gate_of`."""
    gate, reason = found
    if not reason and module.is_transposed and not module.down_proj.is_cpu:
        reason = "expert weights are stored transposed: on this device no kernel takes them as they are"
    read = [getattr(module, name, None) for name in _READ]
    facts = module.__dict__["_layerzero_experts"] = {
        "read": read,
        "reason": reason,
        "gate": gate,
        "own": structure.Own("_apply_gate").of(type(module)),
    }
    return facts


def layerzero_experts(self, hidden_states, top_k_index, top_k_weights):
    """hidden_states (tokens, d), indices and weights (tokens, k): (tokens, d)."""
    traced = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if traced or not structure.are_readable(hidden_states):
        return _own(self)(self, hidden_states, top_k_index, top_k_weights)
    facts = self.__dict__.get("_layerzero_experts")
    if facts is None or not _reads_the_same(self, facts["read"]):  # chosen by name alone, or changed since
        facts = judge(self, gate_of(self))
    if facts["reason"] or _is_changed(self, hidden_states.dtype, facts["own"]):
        return _own(self)(self, hidden_states, top_k_index, top_k_weights)
    counts.count_call(self)
    return _call(self, hidden_states, top_k_index, top_k_weights, facts["gate"])


def _reads_the_same(module, read):
    now = [getattr(module, name, None) for name in _READ]
    return now[0] is read[0] and now[1:] == read[1:]


def _own(module):
    """The experts function that the model had before `kernelize`, or that of its class."""
    forward = type(module).forward
    own = getattr(forward, "__wrapped__", forward)
    name = module.__dict__.get("_layerzero_own_experts")
    return own if name is None else moe.ALL_EXPERTS_FUNCTIONS.get_interface(name, own)


def _is_changed(module, dtype, own_gate):
    """True after a change since `judge`: hooks on the activation, another gate, or other tensors in place of the weights."""
    weights = module.gate_up_proj, module.down_proj
    plain = all(type(weight) is torch.nn.Parameter and weight.dtype == dtype for weight in weights)
    activation = getattr(module, "act_fn", None)
    return (
        not plain
        or "_apply_gate" in module.__dict__
        or not own_gate.is_still(type(module))
        or (isinstance(activation, torch.nn.Module) and structure.is_heard(activation))
        or structure.has_global_hooks()
    )


def weights_of(held, transposed):
    """The weights and biases as `fused_moe` takes them, without copies. held: the module's parameters."""
    weights = held["gate_up_proj"], held["down_proj"]
    gate, down = (weight.transpose(1, 2) if transposed else weight for weight in weights)
    biases = {"gate_bias": held.get("gate_up_proj_bias"), "down_bias": held.get("down_proj_bias")}
    return {"gate_weight": gate, "down_weight": down} | biases


def _call(module, rows, ids, weights, gate):
    held = {name: getattr(module, name) for name in ("gate_up_proj", "down_proj")}
    if module.has_bias:
        held |= {name: getattr(module, name) for name in ("gate_up_proj_bias", "down_proj_bias")}
    return _fused_moe(rows, ids, weights, **weights_of(held, module.is_transposed), **gate.arguments)


def register():
    """Registers experts_implementation="layerzero"; may be called again."""
    moe.ALL_EXPERTS_FUNCTIONS.register(NAME, layerzero_experts)
