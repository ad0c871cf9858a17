"""One forward for a whole decoder like Llama's: it calls the operations directly and leaves out the module calls.

It computes what the base model's own forward computes and returns the same record. Whatever it was not made for goes to
the model's own forward, so the result is always the model's. Models that do something else before or after their layers
have `deferred`.
"""

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, StaticCache
from transformers.modeling_outputs import BaseModelOutputWithPast

from layerzero import _layerzero
from layerzero.integrations.transformers import arguments
from layerzero.integrations.transformers.arguments import CACHE, EMBEDDED, IDS, MASK, POSITIONS, USE_CACHE
from layerzero.integrations.transformers.caches import rows_cache
from layerzero.integrations.transformers.caches.paged_cache import PagedCache
from layerzero.integrations.transformers.counts import count, count_aside, count_captured, count_program
from layerzero.integrations.transformers.run import captured
from layerzero.integrations.transformers.run.decoder_step import DecoderStep
from layerzero.integrations.transformers.run.head import hidden_for
from layerzero.integrations.transformers.run.layer_calls import run_layers, scores_of
from layerzero.integrations.transformers.run.plan import GRADIENTS, StackPlan, plan_of
from layerzero.integrations.transformers.run.products import put_apart, put_together
from layerzero.torch import captures

_OPS = _layerzero.ops
_attention = _OPS["attention"]
_embedding = _OPS["embedding"]
DEVICES = ("cpu", "cuda")
# Where layers of other families than Llama's are called by this forward too, for the captured steps. On a CPU they are a program
# between the model's own code before and after them (`deferred`).
CAPTURING = {"cuda"}
_READ = {IDS, MASK, POSITIONS, CACHE, EMBEDDED, USE_CACHE}
# Keyword arguments that mean nothing to a plain forward; any other one is for the model's own forward.
_IGNORED = {"cache_position", "return_dict", "output_attentions", "output_hidden_states"}


class DecoderPlan(StackPlan):
    """The plan of a base model that embeds, runs its layers and normalises, as Llama does."""

    def further_modules(self, base):
        self.norm = self.stack.norm, base.norm._parameters
        self.embedding = base.embed_tokens._parameters
        parts = [(layer.index, layer.attention) for layer in self.stack.layers]
        self.cache_sizes = [(index, own.key.heads, own.key.size, own.value.size) for index, own in parts]
        return [base.norm, base.embed_tokens]

    def before_guard(self):
        if self.device.type in CAPTURING and not torch.cuda.is_current_stream_capturing():
            with captures.ONE_AT_A_TIME:
                put_together(self.parameter_groups())

    def put_back(self):
        if self.layers is not None:
            put_apart(each for held in self._of_products() for each in held if type(each) is nn.Parameter)

    def parameter_groups(self):
        """The weights, and the biases, of linear layers with one input."""
        return (held for held in self._of_products() if all(type(each) is nn.Parameter for each in held))

    def _of_products(self):
        for tables in self.groups_of_products():
            for name in ("weight", "bias"):
                yield [table.get(name) for table in tables]

    def embed(self, ids, kernel=None):
        """kernel: None, what the call selects."""
        rows = self.blocks(self.embedding) if self.linears else None
        named = {} if kernel is None else {"kernel": kernel}
        return _embedding(ids, self.embedding["weight"], **named) if rows is None else rows(ids)


def _visible(attention_mask, past, length):
    """(batch, 1, length, past + length) bool: causal and not padding."""
    total = past + length
    columns = torch.arange(total, device=attention_mask.device)
    causal = columns <= columns[past:, None]
    return attention_mask.bool()[:, None, None, :] & causal


def _capturing(tensor):
    """Inside a graph capture the host must not wait for a value of the device."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def why_aside(base, plan, given):
    """None, or why the model's own forward has to run. given: the arguments by role, or None if only that forward can read them."""
    if given is None:
        return arguments.UNREADABLE
    if torch.is_grad_enabled() or base.training:
        return GRADIENTS
    ids, embeds = given.get(IDS), given.get(EMBEDDED)
    if (ids is None) == (embeds is None):
        return "neither or both of input_ids and inputs_embeds are given"
    changed = plan.why_changed()
    if changed:
        return changed
    rows = ids if embeds is None else embeds
    if type(rows) is not torch.Tensor or rows.dim() != (2 if embeds is None else 3):
        return "inputs are no plain tensors of rows"
    device = rows.device
    if device.type not in DEVICES or plan.embedding["weight"].device != device:
        return "inputs and weights are not on one CPU or CUDA device"
    if torch.is_autocast_enabled(device.type):
        return "autocast is on"
    for name, value in given.items():
        if name in _READ:
            continue
        if name not in _IGNORED or (value and name.startswith("output_")) or (value is False and name == "return_dict"):
            return f"{name} is given"
    config = base.config
    if getattr(config, "output_attentions", False) or getattr(config, "output_hidden_states", False):
        return "the configuration asks for attentions or hidden states"
    reason = plan.why_configured()
    return reason or _why_aside_positions(rows.shape[1], given.get(MASK), given.get(POSITIONS), given.get(CACHE))


def _why_aside_positions(length, mask, position_ids, cache):
    plain = cache is None or isinstance(cache, PagedCache)
    if not plain and not rows_cache.is_known(cache):
        return rows_cache.OTHER
    past = length_of(cache)
    reason = None if plain else rows_cache.why_not_rows(cache, past, length)
    if reason:
        return reason
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


def length_of(cache):
    return int(cache.get_seq_length()) if cache is not None else 0


def decoder_forward(self, *args, **kwargs):
    """Replaces a base model's forward; see `kernelize`."""
    plan = plan_of(self)
    if plan is None:
        return type(self).forward(self, *args, **kwargs)
    hidden = hidden_for(self, plan, args, kwargs)
    if hidden is not None:
        return BaseModelOutputWithPast(last_hidden_state=hidden)
    given = plan.signature.bind(args, kwargs)
    if given is not None and type(given.get(MASK)) is dict and given[MASK].keys() == {"full_attention"}:
        given = given | {
            MASK: given[MASK]["full_attention"]
        }  # what `generate` makes by kinds of layers, of which there is one
    reason = why_aside(self, plan, given)
    if reason:
        count_aside(self, plan, reason)
        return type(self).forward(self, *args, **kwargs)
    hidden, cache = _run_decoder(self, plan, given)
    count_program(self)
    return BaseModelOutputWithPast(last_hidden_state=hidden, **{_CACHE_FIELD: cache})


_CACHE_FIELD: str = arguments.cache_field(BaseModelOutputWithPast) or CACHE


def _run_decoder(base, plan, given):
    """(last hidden states, the cache) for arguments by role for which `why_aside` has returned None."""
    attention_mask, position_ids, cache = given.get(MASK), given.get(POSITIONS), given.get(CACHE)
    past, ids, use_cache = length_of(cache), given.get(IDS), given.get(USE_CACHE)
    rows = given[EMBEDDED] if ids is None else ids
    if cache is None and (base.config.use_cache if use_cache is None else use_cache):
        cache = DynamicCache(config=base.config)
    length = rows.shape[1]
    why_not = captured.why_not(rows, cache)
    if why_not is None:
        output = _run_captured(base, plan, rows, position_ids, attention_mask, cache, past)
        if output is not None:
            return output, cache
    elif cache is not None and rows.is_cuda:
        count(base, "not_captured", why_not)
    if position_ids is None:
        position_ids = torch.arange(past, past + length, device=rows.device).unsqueeze(0)
    hidden = rows if ids is None else plan.embed(ids)
    mask = pads = None
    paged = isinstance(cache, PagedCache)
    if paged and plan.takes_programs(hidden):
        pads = cache.padding([(attention_mask, None)], *hidden.shape[:2])
    if pads is not None:
        pass  # all that the mask says
    elif attention_mask is not None and attention_mask.dim() == 4:
        mask = attention_mask[..., : past + length]
    elif attention_mask is not None and (_capturing(hidden) or not bool(attention_mask.all())):
        mask = _visible(attention_mask, past, length)
    cos, sin = base.rotary_emb(hidden, position_ids=position_ids)
    if plan.takes_programs(hidden) and paged == (pads is not None):
        hidden = plan.program().run(hidden, [(mask, cos, sin)], cache, past, pads)
    else:
        hidden = run_layers(plan, plan.products(), hidden, cos, sin, _attention_over(cache, past + length, mask))
    return hidden, cache


def _attention_over(cache, total, mask):
    """For `run_layers`: attention over the `total` positions of a Transformers cache, which is given the new ones."""

    def attend(layer, query, key, value, _):
        if cache is not None:
            key, value = cache.update(key.transpose(1, 2), value.transpose(1, 2), layer.shape.index)
            if type(cache) is StaticCache:
                key, value = key[:, :, :total], value[:, :, :total]
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        scale, capped = scores_of(layer)
        return _attention(query, key, value, causal=mask is None, scale=scale, attn_mask=mask, layout="BSHD", **capped)

    return attend


def steps_over(base, plan, cache, past, batch, length):
    """(the captured steps for the current weights, keys and values of each layer with room for such a step); None where nothing
    guards the weights or the cache has no room.
    """
    steps = plan.captured(lambda: captured.CapturedSteps(DecoderStep(base, plan)))
    like = plan.embedding["weight"].new_empty(batch, 1, 0)
    rows = None if steps is None else captured.rows_of(cache, like, plan.cache_sizes, past, length)
    return None if rows is None else (steps, rows)


def run_step(base, steps, inputs, cache, rows, past, choice=None):
    """What `CapturedSteps.run` computes. The report counts the step, and the cache its positions."""
    output, reason = steps.run(inputs, cache, rows, past, choice)
    count_captured(base, steps.measured, reason)
    if type(cache) is DynamicCache:  # steps count on the device what a static cache holds
        rows_cache.appended(cache, inputs.rows.shape[1])
    return output


def _run_captured(base, plan, inputs, positions, mask, cache, past):
    """A step on a CUDA device, as a graph from its second time on: the last hidden states, or None where there are no
    `steps_over` the cache. inputs: ids (b, length) or embeddings (b, length, width).
    """
    length = inputs.shape[1]
    found = steps_over(base, plan, cache, past, len(inputs), length)
    if found is None:
        return None
    steps, rows = found
    if mask is not None:
        mask = mask_of_step(mask, past, length, rows[0].shape[1])
        if mask is None and positions is not None and length == 1 and follow(positions, past):
            positions = None  # the step has them already
    return run_step(base, steps, captured.Inputs(inputs, positions, mask), cache, rows, past)


def follow(positions, past):
    """Whether one position of each sequence is that after `past` others. Waits for the device, as the mask does."""
    return all(row == [past] for row in positions.tolist())


def mask_of_step(mask, past, length, capacity):
    """(b, 1, length, capacity) bool, or None if it hides nothing that causal attention sees."""
    if mask.dim() == 2:
        if bool(mask.all()):
            return None
    elif length == 1 and bool(mask[..., : past + 1].all()):
        return None
    return seen_by_step(mask, past, length, capacity)


def seen_by_step(mask, past, length, capacity):
    """(b, 1, length, capacity) bool: what each row sees, also where a causal step would see as much."""
    seen = _visible(mask, past, length) if mask.dim() == 2 else mask[..., : past + length]
    return nn.functional.pad(seen, (0, capacity - past - length))
