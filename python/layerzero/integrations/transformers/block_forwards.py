"""Forwards of modules whose weights are in blocks, and how a kernelized model comes to use them."""

import dataclasses

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError
from layerzero.integrations.modules import bind
from layerzero.integrations.transformers import accuracy, counts, structure
from layerzero.integrations.transformers.run import replacing, rounding, weights
from layerzero.integrations.transformers.run.blocks import BlockLinear
from layerzero.integrations.transformers.run.plan import plans_of
from layerzero.integrations.transformers.run.released import ReleasedParameter, apply_or_refuse, refuse_gradients
from layerzero.torch.writes import are_counted

_OPS = _layerzero.ops


@replacing.of_rows
def linear_forward(self, rows):
    weight = self.weight
    blocks = BlockLinear.of(self.__dict__)
    if blocks is not None:
        return blocks(rows, self.bias)
    return _OPS["linear"](rows, weight, self.bias) if _is_served(weight, rows) else None


def _is_served(weight, rows):
    """False where its own code knows how to multiply: another type of weight put in since, as quantisation does; rows that it casts."""
    return type(weight) is nn.Parameter and weight.layout is torch.strided and structure.has_dtype(weight, rows)


@replacing.of_rows
def conv1d_forward(self, rows):
    weight = self.weight
    return _OPS["linear"](rows, weight.t(), self.bias) if _is_served(weight, rows) else None


def _released(self):
    """The blocks that are all there is of a module's weight, with gradients or traced too; None if that has changed."""
    return BlockLinear.of(self.__dict__) if self.__dict__["_layerzero_own"].is_still(type(self)) else None


def released_linear_forward(self, rows):
    blocks = _released(self)
    if blocks is None:
        return linear_forward(self, rows)
    refuse_gradients(rows, self.bias)
    counts.count_call(self)
    return blocks(rows, self.bias)


def released_embedding_forward(self, ids):
    rows = _released(self)
    return type(self).forward(self, ids) if rows is None else rows(ids)


FORWARDS = (linear_forward, conv1d_forward, released_linear_forward, released_embedding_forward)


def use(model, mark, kind, activations, ids, max_perplexity_ratio, release):
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1 or any(device.partition(":")[0] not in ("cpu", "cuda") for device in devices):
        got = f"parameters on {', '.join(devices)}"
        raise InvalidRequestError("weights", "a model on the CPU or on one CUDA device", got, "leave weights= out")
    given = accuracy.input_for(model, ids)
    before, unreached = accuracy.first_outcome(model, given)
    mark.report.left |= dict.fromkeys(
        unreached, "weights: nothing tells what others would cost: not reached by the trial"
    )
    absorbed = _absorbed(model)
    mark.report.left |= dict.fromkeys(absorbed, "weights: attention over latents reads it in both directions")
    served = {
        name: module
        for name, module in model.named_modules()
        if replacing.is_served(module, linear_forward)
        and name not in {*unreached, *absorbed}
        and not name.startswith(tuple(f"{path}." for path in unreached))
    }
    mark.report.left |= {
        name: "weights: stored as [inputs, outputs], and blocks are of rows: multiplied with as it is"
        for name, module in model.named_modules()
        if replacing.is_served(module, conv1d_forward)
    }
    if not release:
        _refuse_uncounted(served)
    looked_up = weights.embeddings_of(model, served, kind) if release else {}
    found = weights.block_weights(model, served | looked_up, kind, mark.report.left)
    linears = {
        module: BlockLinear(found.weights[name], activations, module.weight)
        for name, module in served.items()
        if name in found.weights
    }
    chosen, why = rounding.choose(activations, list(linears.values()))
    for module, linear in linears.items():
        module.__dict__["_layerzero_blocks"] = dataclasses.replace(linear, activations=chosen)
    for module, plan in plans_of(model):
        plan.take_blocks(module)
    after = accuracy.outcome_of(model, given)
    report = weights.WeightsReport.of(kind, chosen, found, accuracy.compare(before, after, ids))
    report.why_activations = why
    if not report.worse <= max_perplexity_ratio:
        wanted = f"a perplexity of at most {max_perplexity_ratio} times the model's own"
        fix = f"raise max_perplexity_ratio, or choose another kind than {kind!r}"
        raise InvalidRequestError("weights", wanted, f"{report.worse:.4f}", fix)
    mark.report.weights = report
    if release:
        _release(model, found.weights, report, mark.report.left)


def _refuse_uncounted(served):
    names = [name for name, module in served.items() if not are_counted(module.weight)]
    if names:
        raise InvalidRequestError(
            "weights",
            "parameters whose writes torch counts",
            f"{len(names)} inference tensors, {names[0]}.weight first: blocks of them would be used after a write",
            "load or copy the model outside of torch.inference_mode() (torch.no_grad() does), or pass release_originals=True",
        )


def _absorbed(model):
    """Paths of the linear layers that programs multiply with head by head."""
    paths = {id(module): path for path, module in model.named_modules()}
    return [
        paths[id(layer.get_submodule(shape.attention.latent.up))]
        for holder, plan in plans_of(model)
        for shape, layer in zip(plan.stack.layers, getattr(holder, plan.stack.name), strict=True)
        if shape.attention.latent is not None
    ]


def _release(model, found, report, left):
    """From here on nothing may fail: there is no way back."""
    freed, report.released_bytes = weights.release(model, found, left, report.kind == "gguf")
    for module in freed:
        if isinstance(module, nn.Embedding):
            replacing.replace(module, released_embedding_forward, {"calls": 0})
        else:
            replacing.replace(module, released_linear_forward, module.__dict__["_layerzero_part"])
    for module in model.modules():
        if any(type(parameter) is ReleasedParameter for parameter in module.parameters()):
            bind(module, apply_or_refuse, "_apply")
    for module, plan in plans_of(model):
        plan.build(module)  # forwards are others now
