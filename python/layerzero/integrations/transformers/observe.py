"""Recognises the layers of a model: its own code runs once on a small input, and every tensor that a part of a layer
reads or gives is kept. What flows where is told by equal numbers, what a part computes by a trial of it."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface

from layerzero.integrations.transformers import attention as attention_interface
from layerzero.integrations.transformers import choices, experts, probe, structure
from layerzero.integrations.transformers.decoder import DEVICES, why_not_llama
from layerzero.integrations.transformers.layers import Norm, Stack, Unknown
from layerzero.integrations.transformers.recognise import LayerTrace

NAME = "layerzero_observed"
# What shows in no small input: a bound that only large numbers reach, a factor that grows with the position.
_THRESHOLDS = {"clamp", "clamp_", "clip", "clip_", "floor", "maximum", "minimum"}
_recording: dict[int, LayerTrace] = {}  # by id of the modules within a layer; kernelize has one model at a time


def _attend(module, query, key, value, attention_mask, **further):
    if attention_interface.leaves_softcap_out(module):
        further.pop("softcap", None)
    result = attention_interface.layerzero_attention(module, query, key, value, attention_mask, **further)
    trace = _recording.get(id(module))
    if trace is not None:
        trace.attends(module, (query, key, value), attention_mask, result[0], further)
    return result


def _outermost_lists(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the lists of modules that lie in no other one."""
    found = []
    for name, part in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(part, nn.ModuleList):
            found += [inner] if len(part) else []
        else:
            found += _outermost_lists(part, inner)
    return found


def base_of(model):
    """The module that holds the decoder layers: the model itself, or its base model."""
    for module in (model, getattr(model, "base_model", None), getattr(model, "model", None)):
        if isinstance(module, nn.Module) and isinstance(module._modules.get("layers"), nn.ModuleList):
            return module
    return None


def _find_list(model: nn.Module, base: nn.Module | None) -> tuple[str, str]:
    """(path of the holder, name of the list) of the model's layers; raises Unknown."""
    if base is not None:
        return next(path for path, module in model.named_modules() if module is base), "layers"
    found = _outermost_lists(model)
    if len(found) != 1:
        raise Unknown(f"has {len(found)} lists of layers" if found else "has no list of layers")
    holder, _, name = found[0].rpartition(".")
    return holder, name


def _norm_behind(base: nn.Module) -> Norm:
    """The norm of a base model, which is one."""
    found, _ = structure.norm_of(base.norm)
    return Norm("norm", found[0], structure.eps_of(base.norm), found[1].get("weight_offset", 0.0))


def _why_not_layers(layers: Any) -> str | None:
    """None, or what in the modules stands against any fused forward, whatever they compute."""
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            reason = structure.why_not_plain(module) or _threshold_of(module)
            if reason:
                return f"layer {index}: {name + ': ' if name else ''}{reason}"
    return None


def _threshold_of(module):
    own = inspect.unwrap(type(module).forward)
    if type(module).__module__.startswith("torch.") or not hasattr(own, "__code__"):
        return None
    names = set(_names_in(own, getattr(module, "config", None)))
    for name in list(names):  # and those of the functions of its file
        known = own.__globals__.get(name)
        helper: Any = inspect.unwrap(known) if callable(known) else None
        if getattr(helper, "__module__", None) == type(module).__module__ and hasattr(helper, "__code__"):
            names |= set(helper.__code__.co_names)
    found = sorted(names & _THRESHOLDS)
    return f"its code calls {found[0]}: no small input shows what that does" if found else None


_OPTION = re.compile(r"self\.config\.(\w+) is not None")


def _names_in(function: Any, config: Any) -> Iterable[str]:
    """The names in a method's code, without the branches for an option that its configuration leaves out."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return function.__code__.co_names
    for node in ast.walk(tree):
        option = _OPTION.fullmatch(ast.unparse(node.test)) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and option and getattr(config, option[1], 0) is None:
            node.body = []  # a walk goes on with what is left
    found = (getattr(node, "attr", getattr(node, "id", None)) for node in ast.walk(tree))
    return [name for name in found if name is not None]


class _Hooks:
    """Records one forward of the layers."""

    def __init__(self, layers):
        self.traces = [LayerTrace(layer) for layer in layers]
        self.handles = []

    def __enter__(self):
        for trace in self.traces:
            for module in trace.layer.modules():
                _recording[id(module)] = trace
                if experts.looks_like_experts(module):
                    self.handles.append(module.register_forward_hook(trace.calls_experts, with_kwargs=True))
                elif not module._modules:
                    self.handles.append(module.register_forward_hook(trace.calls_leaf, with_kwargs=True))
            self.handles.append(trace.layer.register_forward_pre_hook(trace.begins, with_kwargs=True))
            self.handles.append(trace.layer.register_forward_hook(trace.ends))
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()
        _recording.clear()


def _layers_of(model: nn.Module, layers: Any, run: Any) -> tuple[tuple[Any, ...], str | None, torch.Tensor]:
    """(descriptions, name of the argument that is the cache, what the first layer got) by one `run()` of the model."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, attention_interface.layerzero_mask)
    before = choices.chosen(model, "attn")
    try:
        choices.choose(model, "attn", NAME)
        with _Hooks(layers) as hooks:
            run()
    except Exception as error:  # whatever a model of unknown code raises on such an input
        raise Unknown(f"it could not be run on a small input: {error}") from error
    finally:
        choices.put_back(before, "attn")
    return *_describe(hooks.traces), hooks.traces[0].given


def _describe(traces):
    caches = {trace.cache for trace in traces}
    if len(caches) != 1:
        raise Unknown("its layers get their cache in different ways")
    cache = next(iter(caches))
    groups: dict[tuple[int, ...], int] = {}
    found = []
    for index, trace in enumerate(traces):
        if index and not trace.follows(traces[index - 1]):
            raise Unknown(f"layer {index}: something is done between it and the layer before")
        try:
            layer = trace.describe()
        except Unknown as unknown:
            raise Unknown(f"layer {index}: {unknown}") from None
        if layer.attention.causal != (cache is not None):
            raise Unknown(f"layer {index}: its attention is {'' if layer.attention.causal else 'not '}causal")
        given = tuple(id(trace.arguments.get(name)) for name in ("attention_mask", "position_embeddings"))
        found.append(dataclasses.replace(layer, group=groups.setdefault(given, len(groups))))
    return tuple(found), cache


class ModelLayers:
    """The layers of a model, judged before any part of it is replaced, and what the model makes of a small input.

    stack: None where they cannot be one, and `reason` why. whole: as in a Llama, nothing is left around them for the
    model's own code.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.base = model, base_of(model)
        self.stack: Any = None
        self.reason: str | None = None
        self.whole = False
        try:
            self.stack = self._found()
        except Unknown as unknown:
            self.reason = str(unknown)
            return
        self.holder = model.get_submodule(self.stack.holder)
        if self.base is not None and why_not_llama(self.base, self.stack) is None and self._embeds():
            self.whole = True
            self.stack = dataclasses.replace(self.stack, norm=_norm_behind(self.base))
        self.expected = self.run(type(self.holder).forward)

    def _found(self) -> Stack:
        path, name = _find_list(self.model, self.base)
        holder = self.model.get_submodule(path)
        layers = getattr(holder, name)
        reason = _why_not_layers(layers) or structure.why_not_plain(holder)
        devices = {parameter.device for parameter in self.model.parameters()}
        if not reason and (len(devices) != 1 or next(iter(devices)).type not in DEVICES):
            reason = "weights are not on one CPU or CUDA device; its parts are replaced one by one"
        reason = reason or _why_not_attention(self.model)
        if reason:
            raise Unknown(reason)
        described, cache, self.first = _layers_of(self.model, layers, lambda: probe.observed_call(self.model))
        return Stack(path, name, described, cache)

    def _embeds(self) -> bool:
        """Whether the first layer got what the embedding gives, without a factor or anything else."""
        embedding = self.base.embed_tokens
        with torch.inference_mode():
            return torch.equal(self.first, embedding(probe.tokens(embedding)[0]))

    def run(self, forward: Any) -> Any:
        """What the model makes of a small input; with `forward` in place of its base's, where that is all."""
        return probe.run_decoder(self.base, forward) if self.whole else probe.run_base(self.model)


def _why_not_attention(model):
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) is None or not hasattr(model, "set_attn_implementation"):
        return "attention: the model has no attention interface"
    can = getattr(model, "_can_set_attn_implementation", None)
    return None if can is None or can() else "attention: the model refuses another one"
