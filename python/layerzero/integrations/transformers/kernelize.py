"""Replaces the parts of a Transformers model that LayerZero computes, and undoes it exactly."""

import dataclasses
import types

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.integrations.transformers import attention as attention_interface
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.decoder import DEVICES, DecoderPlan, decoder_forward

_OPS = _layerzero.ops
_MARK = "_layerzero_kernelized"


@dataclasses.dataclass
class KernelizeReport:
    """replaced: part -> {"count", "operation"}; left: part -> why it stays with the model's own code."""

    replaced: dict = dataclasses.field(default_factory=dict)
    left: dict = dataclasses.field(default_factory=dict)

    def _add(self, part, operation):
        entry = self.replaced.setdefault(part, {"count": 0, "operation": operation})
        entry["count"] += 1

    def __str__(self):
        lines = [f"{part}: {e['count']} through {e['operation']}" for part, e in self.replaced.items()]
        lines += [f"{part}: left, {reason}" for part, reason in self.left.items()]
        return "\n".join(lines)


class _Mark:
    """Says in the model that it is kernelized, and what `unkernelize` cannot see: the attention it had."""

    def __init__(self):
        self.report = KernelizeReport()
        self.attention = None


def _replace(module, function, **facts):
    """Gives one module a forward; `_restore` finds it by its mark."""
    for name, value in facts.items():
        module.__dict__[f"_layerzero_{name}"] = value
    module.__dict__["forward"] = types.MethodType(function, module)


def _rms_norm_forward(self, hidden_states):
    changed = self.weight.dtype != hidden_states.dtype  # the operation rounds to the input's dtype, models promote
    if changed or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return type(self).forward(self, hidden_states)
    return _OPS["rms_norm"](
        hidden_states, self.weight, structure.eps_of(self), weight_offset=self.__dict__["_layerzero_offset"]
    )


def _linear_forward(self, input):
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return nn.functional.linear(input, self.weight, self.bias)
    return _OPS["linear"](input, self.weight, self.bias)


def _mlp_forward(self, x):
    changed = self.act_fn is not self.__dict__["_layerzero_activation"]
    if changed or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return type(self).forward(self, x)
    return self.down_proj(_OPS["swiglu"](self.gate_proj(x), self.up_proj(x)))


_FORWARDS = (_rms_norm_forward, _linear_forward, _mlp_forward, decoder_forward)


def _base_of(model):
    """The module that holds the decoder layers: the model itself, or its base model."""
    for module in (model, getattr(model, "base_model", None), getattr(model, "model", None)):
        if isinstance(module, nn.Module) and isinstance(module._modules.get("layers"), nn.ModuleList):
            return module
    return None


def _replace_norms(model, mark):
    offsets: set[float | None] = set()
    for name, module in model.named_modules():
        if not structure.looks_like_rms_norm(module):
            continue
        offset, reason = structure.rms_norm_offset(module)
        if reason:
            mark.report.left[name] = reason
            offsets.add(None)
            continue
        offsets.add(offset)
        _replace(module, _rms_norm_forward, offset=offset)
        mark.report._add("RMSNorm", "norm.rms")
    return offsets


def _replace_mlps_and_linears(model, mark):
    for name, module in model.named_modules():
        if {"gate_proj", "up_proj", "down_proj", "act_fn"} <= set(module._modules):
            reason = structure.why_not_mlp(module)
            if reason:
                mark.report.left[name] = reason
            else:
                _replace(module, _mlp_forward, activation=module.act_fn)
                mark.report._add("MLP", "activation.swiglu")
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        reason = structure.why_not_linear(module)
        if reason:
            mark.report.left[name] = reason
        else:
            _replace(module, _linear_forward)
            mark.report._add("Linear", "mlp.linear")


def _replace_attention(model, mark):
    attention_interface.register()
    config = getattr(model, "config", None)
    current = getattr(config, "_attn_implementation", None)
    if config is None or current is None or not hasattr(model, "set_attn_implementation"):
        mark.report.left["attention"] = "the model has no attention interface"
        return
    if current not in ("sdpa", "eager"):
        mark.report.left["attention"] = f"the model was given attn_implementation={current!r}"
        return
    try:
        model.set_attn_implementation(attention_interface.NAME)
    except (ValueError, KeyError) as error:
        mark.report.left["attention"] = f"the model refuses another attention: {error}"
        return
    if config._attn_implementation != attention_interface.NAME:
        mark.report.left["attention"] = "the model kept its own attention"
        return
    mark.attention = current
    mark.report._add("attention", "attention")


def _probe(base):
    """Ids and a left padded mask: a small input that shows whether two forwards are the same function."""
    ids = torch.arange(3, 15, device=base.embed_tokens.weight.device).reshape(2, 6) % base.embed_tokens.num_embeddings
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    return ids, mask


def _run_probe(base, forward):
    ids, mask = _probe(base)
    training, base.training = base.training, False
    try:
        with torch.inference_mode():
            return forward(base, input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[mask.bool()]
    finally:
        base.training = training


def _replace_decoder(base, offset, expected, mark):
    """The whole base model's forward, once it is proven to compute the same on a small input."""
    plan = DecoderPlan(offset)
    base.__dict__["_layerzero_decoder"] = plan
    actual = _run_probe(base, decoder_forward)
    reason = next(iter(plan.why_aside), None)
    if not reason and not structure.agrees(actual, expected, slack=3):
        reason = "its layers compute something else than the fused forward"
    if reason:
        del base.__dict__["_layerzero_decoder"]
        mark.report.left["decoder"] = reason
        return
    _replace(base, decoder_forward)
    mark.report._add("decoder", "one fused forward over all layers")


def _why_not_decoder(base):
    if base is None:
        return "the model has no list of decoder layers"
    reason = structure.why_not_decoder(base) or structure.why_not_plain(base)
    devices = {parameter.device for parameter in base.parameters()}
    if not reason and (len(devices) != 1 or next(iter(devices)).type not in DEVICES):
        reason = "weights are not on one CPU or CUDA device; its parts are replaced one by one"
    return reason


def kernelize(model):
    """Runs what LayerZero computes through LayerZero, from here on; returns a report. Twice changes nothing more.

    Weights, their names, state_dict and saved files stay as they are. Training, gradients and tracing take the model's
    own code. Not for use while another thread runs the model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"kernelize: wanted a torch.nn.Module, got {type(model).__name__}")
    if _MARK in model.__dict__:
        return model.__dict__[_MARK].report
    mark = _Mark()
    base = _base_of(model)
    # The layers are judged, and their own result is taken, before any part of them is replaced.
    reason = _why_not_decoder(base)
    expected = None if reason else _run_probe(base, type(base).forward)
    model.__dict__[_MARK] = mark
    try:
        offsets = _replace_norms(model, mark)
        _replace_attention(model, mark)
        _replace_mlps_and_linears(model, mark)
        if not reason and mark.attention is None:
            reason = f"attention: {mark.report.left.get('attention')}"
        if not reason and len(offsets) != 1:
            reason = "its norms are of several kinds"
        if reason:
            mark.report.left["decoder"] = reason
        else:
            _replace_decoder(base, offsets.pop(), expected, mark)
    except BaseException:
        unkernelize(model)
        raise
    return mark.report


def unkernelize(model):
    """Puts everything back as it was before `kernelize`; returns whether there was something to undo."""
    mark = model.__dict__.get(_MARK)
    if mark is None:
        return False
    for module in model.modules():
        if getattr(module.__dict__.get("forward"), "__func__", None) in _FORWARDS:
            del module.__dict__["forward"]
        for name in [name for name in module.__dict__ if name.startswith("_layerzero_")]:
            del module.__dict__[name]
    if mark.attention is not None:
        model.set_attn_implementation(mark.attention)
    return True
