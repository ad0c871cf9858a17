"""The layers of a model as one Stack: its own code runs once on a small input while the graph of each layer is recorded."""

import contextlib
import dataclasses
import functools
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.pytorch_utils import Conv1D

from layerzero.integrations.transformers import choices, probe, progress, structure, thresholds
from layerzero.integrations.transformers.arguments import MASK, POSITIONS, TABLES
from layerzero.integrations.transformers.layers import (
    Attention,
    Layer,
    NotReached,
    Stack,
    Unknown,
    Unread,
    Unshown,
    kind_of,
)
from layerzero.integrations.transformers.recognise.findings import Findings
from layerzero.integrations.transformers.recognise.form import form_of
from layerzero.integrations.transformers.recognise.layer import Read, read, read_again
from layerzero.integrations.transformers.recognise.trace import Graph, Recorder
from layerzero.integrations.transformers.recognise.whole import norm_after_layers, why_not_whole
from layerzero.integrations.transformers.run import attention as attention_interface
from layerzero.integrations.transformers.run import deferred
from layerzero.integrations.transformers.run.decoder import DEVICES

NAMES = ("layerzero_observed", "layerzero_observed_eager")


def _outermost_lists(module: nn.Module, path: str = "") -> list[str]:
    """Returns paths of the lists of modules that are in no other one."""
    found = []
    for name, part in module.named_children():
        inner = f"{path}.{name}" if path else name
        if isinstance(part, nn.ModuleList):
            found += [inner] if len(part) and None not in part._modules.values() else []
        else:
            found += _outermost_lists(part, inner)
    return found


def base_of(model):
    """The module that holds the decoder layers: the model itself, or its base model."""
    for module in (model, getattr(model, "base_model", None), getattr(model, "model", None)):
        if isinstance(module, nn.Module) and isinstance(module._modules.get("layers"), nn.ModuleList):
            return module
    return None


def _multiplies(layers: Any) -> bool:
    """Whether layers may have attention and an MLP: at least four linear layers."""
    return sum(isinstance(part, (nn.Linear, Conv1D)) for part in layers[0].modules()) >= 4


def _find_lists(model: nn.Module) -> list[tuple[str, str]]:
    """[(path of the holder, name of the list)] of the model's layers: one for each model within it."""
    base = base_of(model)
    if base is not None:
        return [(next(path for path, module in model.named_modules() if module is base), "layers")]
    return [(holder, name) for holder, _, name in (path.rpartition(".") for path in lists_of(model))]


def lists_of(model: nn.Module) -> list[str]:
    """Paths of the model's lists of layers, each once."""
    once = {id(model.get_submodule(path)): path for path in reversed(_outermost_lists(model))}
    found = [*reversed(once.values())]
    return [path for path in found if len(found) == 1 or _multiplies(model.get_submodule(path))]


def layers_of(model: nn.Module, findings: Findings) -> "dict[str, ModelLayers | str]":
    """Name in the report -> the layers of a model that follow each other, or why they cannot be one program."""
    lists = _find_lists(model)
    if not lists:
        return {"decoder": "has no list of layers"}
    paths = [path for path, _ in lists]
    names = ["decoder" if len(paths) == 1 or "decoder" in path.split(".") else "encoder" for path in paths]
    two = len(paths) == 2 and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    parts = len(paths) > 1 and not two
    found: dict[str, ModelLayers | str] = {}
    for called, (path, name) in zip(names if len({*names}) == len(paths) else paths, lists, strict=True):
        progress.step(f"{called}: how its layers are computed")
        layers: list[ModelLayers] = []
        modules = model.get_submodule(path).get_submodule(name)
        search = functools.partial(_searched, model, path, name, parts, findings, layers)
        answer = findings.of(f"layers {called}", modules, search)
        if layers or isinstance(answer, str):
            found[called] = layers[0] if layers else answer
        else:
            found[called] = ModelLayers(model, path, parts, *answer)
    return found


def _searched(model: nn.Module, path: str, name: str, part: bool, findings: Findings, layers: Any) -> Any:
    """(the Stack, whether it is whole) of a list of layers, or why they cannot be one program. layers: gets the ModelLayers."""
    try:
        found = ModelLayers(model, path, part)
        found.search(name)
    except Unknown as unknown:
        findings.depend_on_values |= isinstance(unknown, Unshown)
        return str(unknown)
    except Exception as error:  # of code that nobody knows: a model is left as it is
        return f"its layers could not be read: {structure.first_line(error)}"
    layers.append(found)
    return found.stack, found.whole


def _why_not_layers(layers: Any, half: bool) -> str | None:
    """None, or why the modules prevent any fused forward, whatever they compute; `half`: in float16."""
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            reason = structure.why_not_plain(module) or thresholds.why_not_shown(module, half)
            if reason:
                return f"layer {index}: {name + ': ' if name else ''}{reason}"
    return None


def _layers_of(model: nn.Module, layers: Any, run: Any, attention: str) -> tuple[Any, ...]:
    """(descriptions, name of the argument that is the cache, how many values a layer returns or 0, tensors that the
    descriptions do without, what the first one got) by one `run()` of the model. attention: the implementation that the
    layers will have; another one than those of LayerZero where they call torch's function themselves.
    """
    graphs = record(model, layers, run, attention)
    return *_describe(graphs, attention != attention_interface.EAGER), graphs[0].given


def record(model: nn.Module, layers: Any, run: Any, attention: str) -> list[Graph]:
    """The graphs of layers in one `run()` of a model; raises NotReached where it does not run."""
    recorder = Recorder(layers)
    masks = sdpa_mask, attention_interface.layerzero_eager_mask
    computes: tuple[Any, ...] = attention_interface.layerzero_attention, attention_interface.eager_attention
    for name, mask, compute in zip(NAMES, masks, computes, strict=True):
        AttentionInterface.register(name, recorder.attending(compute, compute is attention_interface.eager_attention))
        AttentionMaskInterface.register(name, mask)
    before = choices.chosen(model, "attn")
    try:
        if attention in attention_interface.NAMES:
            attention_interface.choose(model, NAMES)
        with recorder:
            run()
    except Exception as error:  # whatever a model of unknown code raises on such an input
        raise NotReached(f"it could not be run on a small input: {structure.first_line(error)}") from error
    finally:
        choices.put_back(before, "attn")
        for name, compute in zip(NAMES, computes, strict=True):  # a registered recorder would keep the model
            AttentionInterface.register(name, compute)
    return recorder.graphs


def _describe(graphs, reads_is_causal):
    caches = {graph.cache for graph in graphs}
    if len(caches) != 1:
        raise Unknown("its layers get their cache in different ways")
    cache = next(iter(caches))
    groups: dict[tuple[int, ...], int] = {}
    tables: dict[int, Any] = {}
    known: dict[Any, Read] = {}
    found = []
    for index, graph in enumerate(graphs):
        progress.step(f"layer {index + 1} of {len(graphs)}: what it computes")
        if index and not graph.follows(graphs[index - 1]):
            raise Unknown(f"layer {index}: something is done between it and the layer before")
        try:
            layer = _with_mask(_layer_of(graph, known), graph)
        except Unknown as unknown:
            raise type(unknown)(f"layer {index}: {unknown}") from None
        asked = reads_is_causal and graph.arguments.get("is_causal") is True
        if layer.attention.causal != (cache is not None or asked):
            raise Unknown(f"layer {index}: its attention is {'' if layer.attention.causal else 'not '}causal")
        names = [MASK, TABLES]
        names += [] if layer.attention.alibi is None else [layer.attention.alibi.argument]
        table = None if layer.attention.rope is None else layer.attention.rope.table
        names += [] if table is None else [POSITIONS]
        kind = type(layer.attention)
        given = (id(kind), *(id(graph.arguments.get(name)) for name in names), id(graph.bias))
        first = given not in groups
        if first and layer.bias is None and graph.bias is not None:
            raise Unknown(f"layer {index}: its attention has a position_bias of which nothing tells what made it")
        group = groups.setdefault(given, len(groups))
        held = None if table is None else graph.layer.get_submodule(table.module)._buffers[table.name]
        if not torch.equal(*(t if t is not None else torch.zeros(0) for t in (tables.setdefault(group, held), held))):
            raise Unshown(f"layer {index}: its tables of positions are others than those of the layers before")
        found.append(dataclasses.replace(layer, group=group, bias=layer.bias if first else None))
    if not any(isinstance(layer.attention, Attention) for layer in found):
        raise Unknown("none of its layers has keys and values, whose number says how long a text is")
    if len({graph.tuples for graph in graphs}) > 1:
        raise Unknown("its layers return different numbers of values")
    return tuple(found), cache, graphs[0].tuples, _unread(graphs, found)


def _layer_of(graph: Graph, known: dict[Any, Read]) -> Layer:
    """The Layer of a graph. known: graphs that were read, by form; a graph of a known form is not matched again."""
    form = form_of(graph)
    if form in known:
        return read_again(known[form], graph)
    known[form] = read(graph)
    return known[form].layer


def _with_mask(layer: Layer, graph: Graph) -> Layer:
    """The layer, with attention that only its mask makes causal if it gets a mask and a cache and is not causal by itself."""
    if graph.cache is None or layer.attention.causal or graph.arguments.get(MASK) is None:
        return layer
    attention: Any = layer.attention
    return dataclasses.replace(layer, attention=dataclasses.replace(attention, causal=True, needs_mask=True))


def _unread(graphs, layers):
    """The tensors that every layer got as arguments and that its description does not use."""
    used = {MASK, TABLES}
    used |= {layer.attention.alibi.argument for layer in layers if layer.attention.alibi is not None}
    given = [{Unread(name, kind_of(value)) for name, value in [*graph.arguments.items()][1:]} for graph in graphs]
    found = {unread for unread in set.intersection(*given) if unread.kind is not None and unread.argument not in used}
    return tuple(sorted(found))


def _other_numbers(tensor):
    """A tensor of the same shape and dtype with other numbers: of magnitudes from 1/100 to 1000, or the next integers in another order."""
    if not tensor.is_floating_point():
        return (
            tensor.logical_not() if tensor.dtype == torch.bool else tensor.flatten().flip(0).reshape(tensor.shape) + 1
        )
    exponents = structure.normal(*tensor.shape, seed=12).remainder(5) - 2
    return (structure.normal(*tensor.shape, seed=11) * 10**exponents).to(tensor)


class ModelLayers:
    """The layers in the module at `path`, examined before any part of the model is replaced.

    part: the model has other layers too, for images or sound. whole: as in Llama, the model does nothing else than embed, run
    its layers and normalise. alone: no small input reaches the layers. expected: the model's Runs of small inputs, None if
    findings were used.
    """

    def __init__(self, model: nn.Module, path: str, part: bool, stack: Any = None, whole: bool = False) -> None:
        self.model, self.base, self.path, self.part = model, base_of(model), path, part
        self.stack, self.whole = stack, whole
        self.alone = stack is not None and stack.alone
        self.holder = model.get_submodule(path)
        self.are_kept = stack is not None
        self.expected: Any = None

    def search(self, name: str) -> None:
        """Reads what the list `name` of layers computes; raises Unknown if they cannot be one program."""
        self.stack = self._found(self.path, name)
        aside = "it is no decoder" if self.base is None else why_not_whole(self.base, self.stack)
        if self.base is not None and aside is None and self._embeds():
            self.whole = True
            self.stack = dataclasses.replace(self.stack, norm=norm_after_layers(self.base))
        else:
            aside = aside or "its model does more around its layers than embed and normalise"
            self.stack = dataclasses.replace(self.stack, not_captured=aside)
        try:
            self.expected = self.run(type(self.holder).forward)
        except Exception as error:  # whatever a model of unknown code raises
            raise Unknown(f"it could not be run on a small input: {structure.first_line(error)}") from error
        unread = tuple(filter(self._without_effect, self.stack.unread))
        self.stack = dataclasses.replace(self.stack, unread=unread)

    def _found(self, path: str, name: str) -> Stack:
        layers = getattr(self.holder, name)
        half = any(parameter.dtype == torch.float16 for parameter in self.holder.parameters())
        reason = _why_not_layers(layers, half) or structure.why_not_plain(self.holder)
        devices = {parameter.device for parameter in self.model.parameters()}
        if not reason and (len(devices) != 1 or next(iter(devices)).type not in DEVICES):
            reason = "weights are not on one CPU or CUDA device; its parts are replaced one by one"
        implementation, why_not = _attention_of(self.model, self.holder)
        if reason or why_not:
            raise Unknown(reason or why_not)
        interface = implementation in attention_interface.NAMES
        found, cache, tuples, unread, self.first = self._described(layers, implementation)
        return Stack(
            path, name, found, cache, half=half or _why_not_layers(layers, half=True) is None,
            tuples=tuples, alone=self.alone, part=self.part, attention=implementation,
            unread=() if interface else unread,
        )  # fmt: skip

    def _without_effect(self, unread: Unread) -> bool:
        """Whether the model returns the same, bit for bit, if its layers get other numbers in that tensor."""

        def exchange(_, args, kwargs):
            return args, kwargs | {unread.argument: _other_numbers(kwargs[unread.argument])}

        with contextlib.ExitStack() as hooks:
            for layer in getattr(self.holder, self.stack.name):
                hooks.enter_context(layer.register_forward_pre_hook(exchange, with_kwargs=True))
            try:
                return torch.equal(self.rows(type(self.holder).forward), self.expected.rows[0])
            except Exception:  # as whatever a model of unknown code raises
                return False

    def _described(self, layers: Any, attention: str) -> tuple[Any, ...]:
        try:
            return _layers_of(self.model, layers, lambda: probe.observed_call(self.model), attention)
        except NotReached as unreached:
            self.alone = True
            try:
                return _layers_of(self.model, layers, lambda: probe.run_alone(self.holder, layers), attention)
            except NotReached:
                raise unreached from None

    def _embeds(self) -> bool:
        """Whether the first layer gets the embedding's output unchanged."""
        embedding = self.base.embed_tokens
        with torch.inference_mode():
            return torch.equal(self.first, embedding(probe.tokens(embedding)[0]))

    def rows(self, forward: Any) -> Any:
        """The model's result for a small input, None if its layers are no program; with `forward` in place of its base's forward if `whole`."""
        if self.alone:
            replaced = "_layerzero_decoder" in self.holder.__dict__
            further = [functools.partial(deferred.as_one, self.holder)] if replaced else []
            return probe.run_alone(self.holder, getattr(self.holder, self.stack.name), *further)
        if self.part:
            return probe.run_held(self.model, self.holder)
        return probe.run_base(self.base, forward) if self.whole else probe.run_base(self.model)

    def run(self, forward: Any) -> probe.Runs | None:
        """The Runs of `rows` and, where a text reaches the layers, of it with another last token."""
        rows, moved = self.rows(forward), None
        if not self.alone and not self.part:
            moved = probe.run_moved(self.base, forward) if self.whole else probe.run_moved(self.model)
        return None if rows is None else probe.Runs([rows], [] if moved is None else [moved])


def _attention_of(model: nn.Module, holder: nn.Module) -> tuple[str, str | None]:
    """(the attention implementation with which the layers of `holder` run as one program, None), or ("", why there is none)."""
    named = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if named is None or not hasattr(model, "set_attn_implementation"):
        return "", "attention: the model has no attention interface"
    can: Any = getattr(model, "_can_set_attn_implementation", None)
    if can is None or can():
        configs = (getattr(module, "config", None) for module in holder.modules())
        had = getattr(next(filter(None, configs), model.config), "_attn_implementation", None)
        return attention_interface.EAGER if had == "eager" else attention_interface.NAME, None
    return named, None if named in ("sdpa", "eager") else "attention: the model refuses another one than its own"


def wants_interface(found: "ModelLayers | str") -> bool:
    """Whether layers are one program only where the model calls LayerZero's attention."""
    return isinstance(found, ModelLayers) and found.stack.attention in attention_interface.NAMES
