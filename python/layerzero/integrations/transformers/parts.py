"""Replaces the norms, attention, experts, MLPs and linear layers of a model one by one."""

import functools
import inspect

from torch import nn
from transformers.pytorch_utils import Conv1D

from layerzero.integrations.transformers import block_forwards, choices, probe, quantized, structure
from layerzero.integrations.transformers.layers import Unknown
from layerzero.integrations.transformers.recognise import layerwise, observe
from layerzero.integrations.transformers.recognise import module as recognised
from layerzero.integrations.transformers.recognise.findings import Wrong
from layerzero.integrations.transformers.run import attention as attention_interface
from layerzero.integrations.transformers.run import experts as experts_interface
from layerzero.integrations.transformers.run.replacing import of_rows, replace


@of_rows
def _norm_forward(self, rows):
    weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
    if weight is not None and weight.dtype != rows.dtype:  # the operation rounds to the input's dtype, models promote
        return None
    found = self.__dict__["_layerzero_norm"]
    return structure.norm(found.operation, rows, weight, bias, structure.eps_of(self), found.offset)


@of_rows
def _gated_norm_forward(self, rows, gate):
    if not self.weight.dtype == rows.dtype == gate.dtype or rows.shape != gate.shape:
        return None
    offset = self.__dict__["_layerzero_norm"].offset
    return structure.gated_norm(rows, gate, self.weight, structure.eps_of(self), offset)


@of_rows
def _mlp_forward(self, rows):
    mlp, silent = self.__dict__["_layerzero_mlp"]
    weight = getattr(self._modules[mlp.into[0]], "weight", None)  # a packed layer put in since may have none
    as_is = weight is None or structure.has_dtype(weight, rows)
    return structure.run_mlp(self, rows, mlp) if as_is and structure.are_silent(self, mlp, silent) else None


FORWARDS = (_norm_forward, _gated_norm_forward, _mlp_forward)


def _asked(findings, question, module, find):
    """(answer, None), or (None, reason) if `find` raises."""

    def answer():
        try:
            return find(module), None
        except Unknown as unknown:
            return None, str(unknown)
        except Exception as error:  # of unknown code: the part is left as it is, and the answer is not kept
            findings.depend_on_values = True
            return None, f"it could not be read: {structure.first_line(error)}"

    return findings.of(question, [module], answer)


_NORM_REPORTED = {"rms_norm": ("RMSNorm", "norm.rms"), "layer_norm": ("LayerNorm", "norm.layer")}


def replace_norms(model, mark, findings):
    for name, module in model.named_modules():
        if not structure.looks_like_norm(module):
            continue
        found, reason = _asked(findings, f"norm {name}", module, recognised.norm_of)
        if reason:
            mark.report.left[name] = reason
            continue
        norm, gated = found
        called = ("gated RMSNorm", "norm.rms") if gated else _NORM_REPORTED[norm.operation]
        replace(module, _gated_norm_forward if gated else _norm_forward, mark.report.add(*called), norm=norm)


def replace_attention(model, mark, findings):
    attention_interface.register()
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) is None or not hasattr(model, "set_attn_implementation"):
        mark.report.left["attention"] = "the model has no attention interface"
        return
    before = choices.chosen(model, "attn")
    given = {name for _, name in before} - {"sdpa", "eager", None}
    if given:
        names = ", ".join(sorted(map(repr, given)))
        mark.report.left["attention"] = f"the model was given attn_implementation={names}"
        return
    reason = findings.of("attention", [], functools.partial(_try_attention, model, before))
    if reason:
        choices.put_back(before, "attn")
        mark.report.left["attention"] = reason
        return
    if findings.are_kept and _why_refused(model):
        raise Wrong("the model refuses another attention")
    mark.attention = before
    part = mark.report.add("attention", "attention")
    for module in model.modules():
        module.__dict__["_layerzero_attention_part"] = part  # the one that calls the interface counts


def _try_attention(model, before):
    """Chooses LayerZero's attention. None if the model then computes the same, else the reason."""
    untested = probe.why_untested(model)
    expected = probe.run_model(model) if untested else None
    if untested and expected is None:
        return f"{untested}, and no input can be made to compare the two"
    weights = probe.shapes_with_weights(model) if _gives_weights(model, before) else None
    reason = _why_refused(model)
    if reason:
        return reason
    if weights is not None and probe.shapes_with_weights(model) != weights:
        return "it takes attention weights that it does not ask for"
    if untested and not probe.same(probe.run_model(model), expected) and not _attend_alike(model, before, expected):
        return f"{untested}, and on a small input the operation returns another result"
    return None


def _why_refused(model):
    """Chooses LayerZero's attention. None if the model accepts it, else the reason."""
    try:
        attention_interface.choose(model)
    except (ValueError, KeyError) as error:
        return f"the model refuses another attention: {error}"
    accepted = model.config._attn_implementation in attention_interface.NAMES
    return None if accepted else "the model kept its own attention"


def _gives_weights(model, before):
    """Whether the model's code may use attention weights that it did not ask for, as eager attention returns them always."""
    eager = any(name == "eager" for _, name in before)
    return eager and any("output_attentions" in inspect.signature(type(m).forward).parameters for m in model.modules())


def _attend_alike(model, before, expected):
    """Whether a changed result may come only from near ties of routers, since each layer alone attends as before."""
    if not layerwise.may_choose_otherwise(model, expected.rows[0]):
        return False
    layers = [layer for path in observe.lists_of(model) for layer in model.get_submodule(path)]
    try:
        return layerwise.attend_alike(model, layers, before, functools.partial(probe.run_model, model))
    except Exception:  # of code that nobody knows, in another dtype than its own
        return False


_MLP_REPORTED = {
    "swiglu": ("MLP", "activation.swiglu"),
    "geglu": ("GeGLU MLP", "activation.geglu"),
    "silu_and_mul": ("packed MLP", "activation.silu_and_mul"),
    "gated_activation": ("packed GeGLU MLP", "activation.gated"),
}


def replace_mlps_and_linears(model, mark, findings):
    for name, module in model.named_modules():
        if structure.looks_like_mlp(module):
            mlp, reason = _asked(findings, f"mlp {name}", module, recognised.mlp_of)
            if reason:
                mark.report.left[name] = reason
                continue
            part = mark.report.add(*_MLP_REPORTED[mlp.operation])
            replace(module, _mlp_forward, part, mlp=(mlp, [module._modules[name] for name in mlp.silent]))
    known = quantized.replace_quantized(model, mark)
    for name, module in model.named_modules():
        if name in known:
            continue
        if isinstance(module, Conv1D):
            if reason := structure.why_not_conv1d(module):
                mark.report.left[name] = reason
            else:
                replace(module, block_forwards.conv1d_forward, mark.report.add("Conv1D", "mlp.linear"))
        elif packed := structure.packed_weight(module):
            mark.report.left[name] = packed
        if not isinstance(module, nn.Linear):
            continue
        reason = recognised.why_not_linear(module)
        if reason:
            mark.report.left[name] = reason
        else:
            replace(module, block_forwards.linear_forward, mark.report.add("Linear", "mlp.linear"))


def replace_experts(model, mark, findings):
    experts = {n: m for n, m in model.named_modules() if experts_interface.looks_like_experts(m)}
    if not experts:
        return
    gates = {
        n: findings.of(f"experts {n}", [m], functools.partial(experts_interface.gate_of, m)) for n, m in experts.items()
    }
    reasons = {name: experts_interface.judge(module, gates[name])["reason"] for name, module in experts.items()}
    mark.report.left |= {name: reason for name, reason in reasons.items() if reason}
    if any(reasons.values()):  # the choice is the whole model's
        _replace_gates(experts, mark)
        return
    experts_interface.register()
    before = choices.chosen(model, "experts")
    try:
        choices.choose(model, "experts", experts_interface.NAME)
    except (AttributeError, ValueError, KeyError) as error:
        choices.put_back(before, "experts")
        mark.report.left["experts"] = f"the model refuses other experts: {error}"
        return
    mark.experts = before
    chosen = {id(config): name for config, name in before}
    for module in experts.values():
        module.__dict__["_layerzero_own_experts"] = chosen.get(id(module.config))
        module.__dict__["_layerzero_part"] = mark.report.add("experts", "moe.fused")


def _replace_gates(experts, mark):
    """The gates alone of experts whose weights no kernel takes as they are."""
    for module in experts.values():
        given = experts_interface.own_gate_of(module)
        if given:
            experts_interface.replace_gate(module, given, mark.report.add("experts' gate", "activation.gated"))


IN_TURN = (replace_norms, replace_attention, replace_experts, replace_mlps_and_linears)
