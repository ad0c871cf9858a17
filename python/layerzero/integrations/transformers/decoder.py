"""One forward for a whole Llama-like decoder: it calls the operations directly and leaves out the module calls.

It computes what the base model's own forward computes and returns the same record. Whatever it was not made for goes to
the model's own forward, so the result is always the model's.
"""

import inspect
from typing import Any

import torch
from torch.nn import Linear, Parameter
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache, StaticLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from layerzero import _layerzero
from layerzero.integrations.transformers.block import DTYPES, DecoderProgram
from layerzero.integrations.transformers.blocks import GROUP, BlockLinear, join
from layerzero.integrations.transformers.released import ReleasedParameter
from layerzero.integrations.transformers.rotary import PREFIX
from layerzero.integrations.transformers.rows_cache import RowsLayer
from layerzero.integrations.transformers.structure import (
    count_call,
    eps_of,
    has_global_hooks,
    hooks_of,
    replaced_forward,
)

_OPS = _layerzero.ops
_rms_norm = _OPS["rms_norm"]
_add_rms_norm = _OPS["fused_add_rms_norm"]
_linear = _OPS["linear"]
_rope = _OPS["rope"]
_attention = _OPS["attention"]
_swiglu = _OPS["swiglu"]
_embedding = _OPS["embedding"]
DEVICES = ("cpu", "cuda")
_CACHES = {DynamicCache: (DynamicLayer, RowsLayer), StaticCache: (StaticLayer,)}
# Keyword arguments that mean nothing to a plain forward; any other one is for the model's own forward.
_IGNORED = {"cache_position", "return_dict", "output_attentions", "output_hidden_states"}


def _only_captures(hooks):
    """True for the hooks that Transformers leaves behind after a call with output_hidden_states: idle otherwise."""
    return all(getattr(hook, "__module__", "") == "transformers.utils.output_capturing" for hook in hooks.values())


class DecoderPlan:
    """What the fused forward needs to know of one base model; built at the first call, and anew in a copy of it."""

    def __init__(self, offset=0.0):
        self.offset = offset
        self.layers = None
        self.hooks_so_far = None
        self.watch = None  # on the CPU: sees whether all of this still holds; with it the program of these weights
        self.linears: dict[int, Any] = {}  # id of a parameter table -> the members of its layer, which has blocks
        self.why_aside = {}  # reason -> how often the model's own forward was taken

    def __deepcopy__(self, memo):
        return DecoderPlan(self.offset)

    def __reduce__(self):
        return DecoderPlan, (self.offset,)

    def build(self, base):
        self.take_blocks(base)
        modules = [base.norm, base.embed_tokens, base.layers]
        layers = [_LayerPlan(layer, self.offset) for layer in base.layers]
        for layer in base.layers:
            modules += layer.modules()
        kinds: set[Any] = {*map(type, modules), type(base)}
        self.kinds = [(kind, kind.forward) for kind in kinds]
        self.modules, self.expected_types = modules, [*map(type, modules)]
        facts = [fact for module in modules if type(module) is not Linear for fact in _facts_of(module)]
        self.facts = [(table, name, table.get(name)) for table, name in facts]
        self.facts += [(layer.members, "training", False) for layer in layers]  # a dropout within
        # The tables are the modules' own objects: a hook, a swapped part or a replaced forward shows in them.
        self.hooks = [table for module in modules for table in hooks_of(module)]
        self.parts = [module._modules for module in [base, *modules] if module._modules]
        self.expected_parts = [tuple(table.values()) for table in self.parts]
        self.members = [module.__dict__ for module in modules]
        self.expected_forwards = [table.get("forward") for table in self.members]
        self.norm = base.norm._parameters
        self.norms = [self.norm, *(norm for layer in layers for norm in layer.all_norms)]
        self.eps = eps_of(base.norm)
        self.embedding = base.embed_tokens._parameters
        linears = (table for layer in layers for table in (*layer.attention, *layer.mlp))
        self.weights = [self.embedding, *self.norms, *linears]
        self.layers = layers  # last: another thread takes it for the sign that all is there

    def take_blocks(self, base):
        """Multiplies with the weights in blocks that `kernelize` has put into linear layers."""
        self.watch = None
        self.linears = {id(m._parameters): m.__dict__ for m in base.modules() if "_layerzero_blocks" in m.__dict__}

    def blocks(self, table):
        """The BlockLinear in place of a linear layer's parameter, or None."""
        return BlockLinear.of(self.linears.get(id(table), {}))

    def embed(self, ids):
        rows = self.blocks(self.embedding) if self.linears else None
        return _embedding(ids, self.embedding["weight"]) if rows is None else rows(ids)

    def multiply(self, rows, table):
        """The product of rows and a linear layer's weight, be it the parameter or in blocks."""
        blocks = self.blocks(table) if self.linears else None
        return _linear(rows, table["weight"], table["bias"]) if blocks is None else blocks(rows, table["bias"])

    def joined(self, tables):
        """The arguments of one linear_gguf in place of several with one input, or None where they cannot be one."""
        blocks = [found for found in map(self.blocks, tables) if found is not None]
        if len(blocks) < len(tables) or len({(b.weight.format, b.activations) for b in blocks}) > 1:
            return None
        biases = [table["bias"] for table in tables]
        if any(table["weight"].shape[0] % GROUP for table in tables) or (
            None in biases and any(b is not None for b in biases)
        ):
            return None
        return join([b.weight for b in blocks]) | {
            "activations": blocks[0].activations,
            "bias": None if None in biases else torch.cat([bias.detach() for bias in biases]),
        }

    def why_changed(self):
        """None, or what was done to the modules since kernelize that only their own forward honours."""
        # Every hook that is registered anywhere takes a new id: as long as there is none, no table has to be looked at.
        hooks = RemovableHandle.next_id
        watch = self.watch
        if watch is not None and hooks == self.hooks_so_far and _layerzero.unchanged(watch[0]):
            return self._why_other_classes()
        self.watch = None
        self.hooks_so_far = hooks
        reason = self._why_changed()
        if reason is None and not any(self.hooks) and self.embedding["weight"].device.type == "cpu":
            self.watch = self._look()
        return reason

    def _why_other_classes(self):
        """The same for what no table of a module holds."""
        if [*map(type, self.modules)] != self.expected_types or any(
            kind.forward is not own for kind, own in self.kinds
        ):
            return "a class was changed after kernelize"
        return None

    def _look(self):
        parts = list(zip(self.parts, self.expected_parts, strict=True))
        forwards = [(table, "forward", table.get("forward")) for table in self.members]
        given = [(table, name, table.get(name)) for table in self.weights for name in ("weight", "bias")]
        tensors = [entry for entry in given if type(entry[2]) is Parameter]
        absent = [entry for entry in given if type(entry[2]) is not Parameter]  # or released
        facts = [(table, name, table.get(name)) for table, name, _ in self.facts]
        watched = (parts, forwards + absent + facts, tensors)
        return _layerzero.watch(*watched), watched, []  # all three have to live as long as the watch

    def _why_changed(self):
        if has_global_hooks() or (any(self.hooks) and not all(map(_only_captures, self.hooks))):
            return "a module has hooks"
        if [tuple(table.values()) for table in self.parts] != self.expected_parts:
            return "a module was replaced after kernelize"
        forwards = [table.get("forward") for table in self.members]
        if forwards != self.expected_forwards and list(map(replaced_forward, self.members)) != self.expected_forwards:
            return "a forward was replaced after kernelize"
        weights = [table.get("weight") for table in self.weights]
        weights += [table["bias"] for table in self.weights if table.get("bias") is not None]
        weights = [weight for weight in weights if type(weight) is not ReleasedParameter]
        if any(type(w) is not Parameter or w.layout is not torch.strided or w.is_neg() for w in weights):
            return "a weight is no longer a plain parameter"
        if len({weight.device for weight in weights}) > 1:
            return "the weights are not on one device"
        classes = self._why_other_classes()
        if classes:
            return classes
        if any(_differs(table.get(name), value) for table, name, value in self.facts):
            return "an attribute of a module was changed after kernelize"
        dtype = self.embedding["weight"].dtype
        if any(norm["weight"].dtype is not dtype for norm in self.norms):
            return "a norm's weight has another dtype than the embedding: the model promotes, the operation does not"
        return None


def _differs(value, expected):
    """Of anything but numbers and texts another object: comparing configurations or tensors is no matter of a moment."""
    if value is expected:
        return False
    return not isinstance(expected, (int, float, str)) or type(value) is not type(expected) or value != expected


def _facts_of(module):
    """[(table, name)] of what the module's own forward may read: its plain attributes, and functions of its file."""
    members = module.__dict__
    found = [(members, name) for name in members if not name.startswith("_") and name not in ("forward", "training")]
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is not None:
        table = inspect.unwrap(type(module).forward).__globals__
        found += [(table, name) for name in code.co_names if name.startswith(PREFIX)]
    return found


_UNDONE = DecoderPlan()
_UNDONE.layers = []


class _LayerPlan:
    """Parameter tables and constants of one layer. Tables, not tensors: `model.to` and loading replace the tensors."""

    def __init__(self, layer, offset):
        self.offset = offset
        attention, mlp = layer.self_attn, layer.mlp
        self.members = attention.__dict__
        self.index = attention.layer_idx
        self.head_dim = attention.head_dim
        self.scaling = attention.scaling
        self.norms = (layer.input_layernorm._parameters, layer.post_attention_layernorm._parameters)
        self.eps = (eps_of(layer.input_layernorm), eps_of(layer.post_attention_layernorm))
        names = ("q_proj", "k_proj", "v_proj", "o_proj")
        self.attention = tuple(attention._modules[name]._parameters for name in names)
        self.mlp = tuple(mlp._modules[name]._parameters for name in ("gate_proj", "up_proj", "down_proj"))
        self.all_norms = list(self.norms)
        self.head_norms = None
        if "q_norm" in attention._modules:
            q_norm, k_norm = attention.q_norm, attention.k_norm
            self.head_norms = (q_norm._parameters, eps_of(q_norm), k_norm._parameters, eps_of(k_norm))
            self.all_norms += [q_norm._parameters, k_norm._parameters]


def _visible(attention_mask, past, length):
    """(batch, 1, length, past + length) bool: causal and not padding."""
    total = past + length
    columns = torch.arange(total, device=attention_mask.device)
    causal = columns <= columns[past:, None]
    return attention_mask.bool()[:, None, None, :] & causal


def _capturing(tensor):
    """Inside a graph capture the host must not wait for a value of the device."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _why_aside(base, plan, ids, embeds, mask, position_ids, cache, past, kwargs):
    if plan is _UNDONE:
        return "kernelize was undone, a wrapper kept its forward"
    if torch.is_grad_enabled() or base.training:
        return "gradients are recorded, or the model is in training mode"
    if torch.compiler.is_compiling():
        return "the call is being traced"
    if (ids is None) == (embeds is None):
        return "neither or both of input_ids and inputs_embeds are given"
    changed = plan.why_changed()
    if changed:
        return changed
    given = ids if embeds is None else embeds
    if type(given) is not torch.Tensor or given.dim() != (2 if embeds is None else 3):
        return "inputs are no plain tensors of rows"
    device = given.device
    if device.type not in DEVICES or plan.embedding["weight"].device != device:
        return "inputs and weights are not on one CPU or CUDA device"
    if torch.is_autocast_enabled(device.type):
        return "autocast is on"
    for name, value in kwargs.items():
        if name not in _IGNORED or (value and name.startswith("output_")) or (value is False and name == "return_dict"):
            return f"{name} is given"
    config = base.config
    if getattr(config, "output_attentions", False) or getattr(config, "output_hidden_states", False):
        return "the configuration asks for attentions or hidden states"
    if config._attn_implementation != "layerzero":
        return "another attention implementation was chosen"
    if not getattr(config, "is_causal", True):
        return "the configuration asks for attention that is not causal"
    return _why_aside_positions(given.shape[1], mask, position_ids, cache, past)


def _why_aside_positions(length, mask, position_ids, cache, past):
    if cache is not None:
        layer_types = _CACHES.get(type(cache), ())
        if not layer_types or any(type(layer) not in layer_types for layer in cache.layers):
            return "the cache is neither a plain DynamicCache nor a plain StaticCache"
        if getattr(cache, "offloading", False):
            return "the cache is offloaded"
    if mask is not None:
        total = past + length
        rows = type(mask) is torch.Tensor and mask.dim() == 2 and mask.shape[1] == total
        # What `generate` makes for a static cache: (batch, 1, rows, keys), True where a row sees a key.
        first: Any = cache.layers[0] if type(cache) is StaticCache else None
        keys = total if first is None else first.max_cache_len
        full = type(mask) is torch.Tensor and mask.dim() == 4 and mask.dtype == torch.bool
        if not rows and not (full and mask.shape[1:] == (1, length, keys)):
            return "the mask is neither one value for each position so far nor one for each row and key"
    elif length > 1 and position_ids is not None and not _consecutive(position_ids):
        return "positions are not consecutive, as of packed sequences, or cannot be read inside a capture"
    return None


def _consecutive(position_ids):
    return not _capturing(position_ids) and bool((position_ids.diff(dim=-1) == 1).all())


def decoder_forward(
    self,
    input_ids=None,
    attention_mask=None,
    position_ids=None,
    past_key_values=None,
    inputs_embeds=None,
    use_cache=None,
    **kwargs,
):
    """Takes the place of a base model's forward; see `kernelize`."""
    plan = self.__dict__.get("_layerzero_decoder") or _UNDONE
    if plan.layers is None:
        plan.build(self)
    past = int(past_key_values.get_seq_length()) if past_key_values is not None else 0
    reason = _why_aside(
        self, plan, input_ids, inputs_embeds, attention_mask, position_ids, past_key_values, past, kwargs
    )
    if reason:
        plan.why_aside[reason] = plan.why_aside.get(reason, 0) + 1
        return type(self).forward(
            self,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
    hidden = inputs_embeds if input_ids is None else plan.embed(input_ids)
    if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
        past_key_values = DynamicCache(config=self.config)
    length = hidden.shape[1]
    if position_ids is None:
        position_ids = torch.arange(past, past + length, device=hidden.device).unsqueeze(0)
    mask = None
    if attention_mask is not None and attention_mask.dim() == 4:
        mask = attention_mask[..., : past + length]
    elif attention_mask is not None and (_capturing(hidden) or not bool(attention_mask.all())):
        mask = _visible(attention_mask, past, length)
    cos, sin = self.rotary_emb(hidden, position_ids=position_ids)
    if _takes_programs(hidden, plan):
        hidden = _run_program(plan, hidden, cos, sin, past_key_values, past, mask)
    else:
        hidden = _run_layers(plan, hidden, cos, sin, past_key_values, past + length, mask)
    count_call(self)
    return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=past_key_values)


def _takes_programs(hidden, plan):
    if hidden.device.type != "cpu" or hidden.dtype not in DTYPES or not _layerzero.programs_may_run():
        return False
    return hidden.dtype is plan.embedding["weight"].dtype


def _program(plan):
    watch = plan.watch
    programs = watch[2] if watch else []
    if not programs:
        programs.append(DecoderProgram(plan))
    return programs[0]


def program_of(base):
    """The program of a kernelized base model's layers, or None where they run by themselves."""
    plan = base.__dict__.get("_layerzero_decoder")
    if plan is None or base.embed_tokens.weight.device.type != "cpu" or base.embed_tokens.weight.dtype not in DTYPES:
        return None
    if plan.layers is None:
        plan.build(base)
    return None if plan.why_changed() else _program(plan)


def _run_program(plan, hidden, cos, sin, cache, past, mask):
    return _program(plan).run(hidden, cos, sin, mask, cache, past)


def _run_layers(plan, hidden, cos, sin, cache, total, mask):
    batch, length = hidden.shape[:2]
    update = cache.update if cache is not None else None
    static = type(cache) is StaticCache
    causal = mask is None
    offset, linear = plan.offset, plan.multiply
    delta = None  # what the layer before adds to the stream; the next norm adds it
    for layer in plan.layers:
        weight = layer.norms[0]["weight"]
        if delta is None:
            rows = _rms_norm(hidden, weight, layer.eps[0], weight_offset=offset)
        else:
            rows, hidden = _add_rms_norm(delta, hidden, weight, layer.eps[0], weight_offset=offset)
        shape = (batch, length, -1, layer.head_dim)
        q, k, v, o = layer.attention
        query = linear(rows, q).view(shape)
        key = linear(rows, k).view(shape)
        value = linear(rows, v).view(shape)
        if layer.head_norms is not None:
            q_norm, q_eps, k_norm, k_eps = layer.head_norms
            query = _rms_norm(query, q_norm["weight"], q_eps, weight_offset=offset)
            key = _rms_norm(key, k_norm["weight"], k_eps, weight_offset=offset)
        query = _rope(query, cos, sin, layout="BSHD")
        key = _rope(key, cos, sin, layout="BSHD")
        if update is not None:
            key, value = update(key.transpose(1, 2), value.transpose(1, 2), layer.index)
            if static:
                key, value = key[:, :, :total], value[:, :, :total]
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        rows = _attention(query, key, value, causal=causal, scale=layer.scaling, attn_mask=mask, layout="BSHD")
        rows = rows.reshape(batch, length, -1)
        delta = linear(rows, o)
        rows, hidden = _add_rms_norm(delta, hidden, layer.norms[1]["weight"], layer.eps[1], weight_offset=offset)
        gate, up, down = layer.mlp
        rows = _swiglu(linear(rows, gate), linear(rows, up))
        delta = linear(rows, down)
    if delta is None:
        return _rms_norm(hidden, plan.norm["weight"], plan.eps, weight_offset=offset)
    return _add_rms_norm(delta, hidden, plan.norm["weight"], plan.eps, weight_offset=offset)[0]
