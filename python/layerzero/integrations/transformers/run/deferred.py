"""The layers of any model as one program, between the model's own code before and after them.

The forward of the module that holds the layers is the model's own. The layers that it calls give back what they got,
until the last one runs the program of all of them, with the masks, tables and cache that each was called with. So
embeddings, positions, masks and norms around the layers stay the model's, whatever they are. Where a call turns out to
be none for the program, the model's own forward runs again: nothing was written so far.
"""

import functools
import threading
from typing import Any

import torch
from transformers.cache_utils import EncoderDecoderCache

from layerzero.errors import ModelStateError
from layerzero.integrations.transformers import biases, structure
from layerzero.integrations.transformers.arguments import (
    ENCODED,
    ENCODED_MASK,
    MASK,
    POSITIONS,
    TABLES,
    UNREADABLE,
    USE_CACHE,
    signature_of,
    tables_of,
)
from layerzero.integrations.transformers.caches import rows_cache, states_cache
from layerzero.integrations.transformers.caches.latents import joined
from layerzero.integrations.transformers.caches.padding import OTHER_MASK, shows_beyond
from layerzero.integrations.transformers.caches.paged_cache import PagedCache
from layerzero.integrations.transformers.counts import count_aside, count_program
from layerzero.integrations.transformers.run import encoded, linear_biases
from layerzero.integrations.transformers.run.attention import EAGER, is_causal_mask, wants_outputs
from layerzero.integrations.transformers.run.decoder import CAPTURING
from layerzero.integrations.transformers.run.encoded import Encoded
from layerzero.integrations.transformers.run.plan import GRADIENTS, StackPlan, plan_of

_running = threading.local()  # .call: the one that is under way in this thread
_KNOWN = {MASK, TABLES, POSITIONS, "cache_position", USE_CACHE}
_ALONE = {MASK, USE_CACHE}
_GATHERED = {"output_hidden_states", "output_attentions"}
_NOT_ALL = "its layers were not all called"
_NO_PROGRAM = "its layers run part by part there: programs are for float32, bfloat16 and float16 on the CPU"


class _Call:
    """One forward of the holder, and what its layers were called with so far."""

    def __init__(self, plan: StackPlan) -> None:
        self.plan = plan
        self.next = 0  # the layer that is to come
        self.hidden: Any = None  # what the layers give back so far
        self.rows: Any = None  # the same, where the model's own code cannot write into it
        self.cache: Any = None
        self.encoded: Encoded | None = None
        self.past = 0
        self.given: list[Any] = [None] * plan.stack.groups  # (mask, tables, alibi) as the layers of a group got them
        self.slopes: dict[int, Any] = {}
        self.aside: str | None = None
        self.done = False

    @property
    def is_masked(self) -> bool:
        return self.given[0][0] is not None

    def take(self, index: int, arguments: dict[str, Any]) -> torch.Tensor | None:
        """Returns the result of layer `index`; None to run its own code."""
        if self.done:
            self._undo()
        hidden = arguments.pop(next(iter(arguments)))
        if index == 0 and self.next == 0:
            self.aside = self._why_not(hidden, arguments)
            self.rows = self.hidden = hidden
        if self.next == 0 and (self.aside or index):
            return None
        if index != self.next or hidden is not self.hidden or not self._keeps(index, arguments):
            self.aside = self.aside or "its layers were not called one after the other"
        self.next = index + 1
        if self.aside or self.next < len(self.plan.layers):
            if index == 0 and (self.plan.stack.alone or self.plan.stack.part):
                self.hidden = hidden.clone()
            return self.hidden
        if self.rows is not hidden and not _are_same_bits(self.rows, hidden):
            self.aside = "its rows were changed between the layers"
        groups = [self._group(group, *given) for group, given in enumerate(self.given)]
        pads = self._padding(groups) if isinstance(self.cache, PagedCache) else None
        if pads is not None and None in self.slopes.values():
            self.aside = "its attention has a bias, which attention over blocks does not take"
        if self.aside:
            return hidden
        self.done = True
        return self.plan.program().run(self.rows, groups, self.cache, self.past, pads, self.encoded, self.slopes)

    def _undo(self) -> None:
        """The layers are gone through again: no program."""
        self.done, self.aside = False, "its layers were called again"
        if self.cache is not None:
            self.plan.wrong = self.aside
            wanted, got = "each layer called once in a forward over a cache", "layers that were called twice"
            raise ModelStateError("forward", wanted, got, "begin again with another cache")

    def _why_not(self, hidden: Any, arguments: dict[str, Any]) -> str | None:
        if type(hidden) is not torch.Tensor or hidden.dim() != 3 or not self.plan.takes_programs(hidden):
            return _no_program(self.plan)
        if wants_outputs():
            return "attentions or hidden states are asked for"
        stack = self.plan.stack
        known = _ALONE if stack.alone else _KNOWN | {ENCODED, ENCODED_MASK} if stack.cross else _KNOWN
        if not all(unread.is_given(arguments) for unread in stack.unread):
            return "a tensor that its layers do not read is of another kind"
        known = known | {unread.argument for unread in stack.unread}
        known = known | {alibi.argument for alibi, _, _ in self.plan.alibis.values()}
        causal = stack.layers[0].attention.causal and stack.cache is None  # as the model's own code asks for each time
        asked = bool(arguments.pop("is_causal", False))
        if asked != causal and stack.attention != EAGER:  # which reads no is_causal
            return f"is_causal is {'not ' if causal else ''}given"
        for key, value in arguments.items():
            if key not in known and key != stack.cache and value is not None and value is not False:
                return f"{key} is given"
        self.cache = arguments.get(stack.cache) if stack.cache else None
        reason = self._why_not_encoded(hidden, arguments) if stack.cross else None
        if reason or self.cache is None:
            return reason
        paged = isinstance(self.cache, PagedCache)
        if paged and self.plan.biases:
            return "its attention has a bias, which attention over blocks does not take"
        if paged and stack.deltas:
            return "some of its layers keep a state, and blocks hold keys and values"
        if paged and stack.layers[0].attention.latent is not None:
            manager = self.cache.manager
            if manager.has_scales:
                return "its latents are stored with scales"
            if any(joined(*manager.storage(index)) is None for index in range(manager.num_layers)):
                return "its latents and rotated keys are in two allocations"
        if not paged and not rows_cache.is_known(self.cache):
            return rows_cache.OTHER
        self.past = int(self.cache.get_seq_length())
        if paged:
            return None
        reason = rows_cache.why_not_rows(self.cache, self.past, hidden.shape[1])
        return reason or states_cache.why_not(self.cache, hidden, self.plan.program().states, self.past)

    def _why_not_encoded(self, hidden: Any, arguments: dict[str, Any]) -> str | None:
        """Takes what an encoder gave, and of the model's cache the part for the layers' own keys."""
        both = self.cache
        if both is not None:
            if type(both) is not EncoderDecoderCache or isinstance(both.self_attention_cache, PagedCache):
                return "the cache is no EncoderDecoderCache of plain ones"
            self.cache = both.self_attention_cache
        self.encoded = Encoded(arguments.get(ENCODED), arguments.get(ENCODED_MASK), both)
        return encoded.why_not(self.encoded, hidden)

    def _keeps(self, index: int, arguments: dict[str, Any]) -> bool:
        """False where a layer gets something else of an encoder than the first, or than the others of its group."""
        group = self.plan.stack.layers[index].group
        mask, tables = arguments.get(MASK), arguments.get(TABLES)
        tables = arguments.get(POSITIONS) if group in self.plan.position_tables else tables
        seen = self.encoded
        if seen is not None and (
            seen.rows is not arguments.get(ENCODED) or seen.mask is not arguments.get(ENCODED_MASK)
        ):
            return False
        kept = self.given[group]
        alibi = self.plan.alibis.get(group)
        given = mask, tables, None if alibi is None else arguments.get(alibi[0].argument)
        if kept is None:
            self.given[group] = given
            return True
        return all(one is other for one, other in zip(kept, given, strict=True))

    def _group(self, group: int, mask: Any, tables: Any, slanted: Any) -> tuple[Any, Any, Any]:
        """(mask, cos, sin) as the program takes them, which applies the window too."""
        own, bias = self.plan.attention_of[group], self.plan.biases.get(group)
        window = own.window_of_pages if isinstance(self.cache, PagedCache) else own.window
        length = self.hidden.shape[1]
        total = self.past + length
        if group in self.plan.stack.deltas:
            return self._of_rows(mask), None, None
        if is_causal_mask(mask) and own.causal:
            mask = None
        elif mask is None and length > 1 and group in self.plan.need_masks:
            self.aside = "its attention is not causal without a mask"
        if mask is None and window is not None and total > window:  # SDPA would hide nothing
            self.aside = "no mask is given, and the layers' window would hide keys"
        if mask is not None:
            if self._is_of_other_shape(mask, window, total):
                self.aside = "the mask is not one value for each row and key"
            elif group not in self.plan.alibis:
                mask = mask[..., :total]
                if isinstance(self.cache, PagedCache) and mask.is_floating_point():
                    mask = linear_biases.simplified(mask, False, self.past)  # as code of a model's own adds it
                if window is not None and shows_beyond(mask, self.past, length, window):
                    self.aside = "the mask shows keys that are outside of the layers' window"
        if bias is not None and self.aside is None:
            shift = biases.compute(bias, self.past, length)
            if mask is None and length > 1 and self.plan.stack.kind == "decoder":
                shift = biases.with_triangle(shift, self.past)
            mask = biases.merged(mask, shift, total)
        if group in self.plan.alibis and self.aside is None:
            found = linear_biases.applied(*self.plan.alibis[group], mask, slanted, self.past, length)
            if found is None:
                self.aside = "its bias by distance has another shape"
            else:
                mask, self.slopes[group] = found
        if group in self.plan.position_tables:
            return mask, *self._rows_of_table(group, tables)
        return mask, *tables_of(tables)[:: -1 if own.rope is not None and own.rope.sines_first else 1]

    def _rows_of_table(self, group: int, positions: Any) -> tuple[Any, Any]:
        if type(positions) is not torch.Tensor or positions.dtype != torch.int64 or positions.dim() != 2:
            self.aside = "its positions are none of two axes"
            return None, None
        table, buffers = self.plan.position_tables[group]
        return table.at(buffers[table.name], positions)

    def _of_rows(self, mask: Any) -> Any:
        """A mask (batch, length) as factors of rows, (batch, length, 1)."""
        if mask is None:
            return None
        if type(mask) is not torch.Tensor or mask.shape != self.hidden.shape[:2]:
            self.aside = "the mask is not one value for each row"
            return None
        return mask[..., None].to(self.hidden.dtype)

    def _is_of_other_shape(self, mask: Any, window: int | None, total: int) -> bool:
        """A mask may differ between heads where no window has to be compared with it."""
        if type(mask) is not torch.Tensor or mask.dim() != 4 or mask.shape[-1] < total:
            return True
        return mask.shape[1] != 1 and (window is not None or mask.shape[1] != self.plan.heads)

    def _padding(self, groups: list[Any]) -> list[int] | None:
        """What the masks hide at the left, which is all that attention over blocks gets of them."""
        masks = [(mask, self.plan.attention_of[group].window_of_pages) for group, (mask, *_) in enumerate(groups)]
        pads = None if self.aside else self.cache.padding(masks, *self.hidden.shape[:2])
        if pads is None:
            self.aside = self.aside or OTHER_MASK
        return pads


def _no_program(plan: StackPlan) -> str:
    """Why the device of a plan has no programs, with the reason why its decode steps are not captured there."""
    why = plan.stack.not_captured if plan.device.type in CAPTURING else None
    return f"{_NO_PROGRAM}; its steps are not captured: {why}" if why else _NO_PROGRAM


def _why_aside(holder: Any, plan: StackPlan) -> str | None:
    if torch.is_grad_enabled() or holder.training:
        return GRADIENTS
    changed = plan.why_changed()
    if changed:
        return changed
    if plan.device.type != "cpu":
        return _no_program(plan)
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    return plan.why_configured()


def _run(plan: StackPlan, forward: Any) -> tuple[_Call, Any]:
    """(what became of the layers that `forward()` calls, its result)."""
    call, before = _Call(plan), getattr(_running, "call", None)
    _running.call = call
    try:
        return call, forward()
    finally:
        _running.call = before


def _why_not_rows_alone(plan: StackPlan, args: Any, kwargs: Any) -> str | None:
    """None, or what a forward is asked for of single layers, which code of its own may gather."""
    given = plan.signature.bind(args, kwargs)
    if given is None:
        return UNREADABLE
    for name in _GATHERED & {*plan.signature.names, *kwargs}:
        wanted = given.get(name)
        if getattr(plan.config, name, False) if wanted is None else wanted:
            return "attentions or hidden states are asked for"
    return None


def _are_same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of NaN too."""
    integers = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(integers), b.view(integers))


def _prove(plan: StackPlan, call: _Call, result: Any, own: Any) -> str | None:
    """None once a program of layers that were tried alone, within the model's code around them, has given what the model's
    `own` does: for calls with a mask, and for calls without. Else why not.
    """
    actual, expected = structure.tensors_of(result), structure.tensors_of(own)
    if not all(tensor.isfinite().all() for tensor in expected):
        return "its result is not finite: nothing tells whether the program is right"
    if len(actual) != len(expected) or not all(map(functools.partial(structure.agrees, slack=3), actual, expected)):
        plan.wrong = "the model's own code does something else with its layers"
        return plan.wrong
    plan.proven.add(call.is_masked)
    return None


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def as_one(holder: Any, forward: Any) -> Any:
    """The result of `forward()`, which calls the layers of a holder one after the other; None if not as a program."""
    plan = holder.__dict__["_layerzero_decoder"]
    plan.build(holder)
    reason = _why_aside(holder, plan)
    if reason is None:
        call, result = _run(plan, forward)
        if call.done:
            return result
        reason = call.aside or _NOT_ALL
    plan.count_aside(reason)
    return None


def deferring_forward(self, *args, **kwargs):
    """Takes the place of the forward of the module that holds the layers."""
    plan = plan_of(self)
    if plan is None:
        return type(self).forward(self, *args, **kwargs)
    own = functools.partial(type(self).forward, self, *args, **kwargs)
    reason = _why_aside(self, plan) or plan.wrong or _why_not_rows_alone(plan, args, kwargs)
    if reason is None:
        first = own
        if plan.stack.alone and len(plan.proven) < 2:  # what runs again finds what the first run found
            copies = {name: _copied(value) for name, value in kwargs.items()}
            own = functools.partial(type(self).forward, self, *map(_copied, args), **copies)
        call, result = _run(plan, first)
        if call.done and plan.stack.alone and call.is_masked not in plan.proven:
            expected = own()
            reason = _prove(plan, call, result, expected)
            if reason is not None:
                count_aside(self, plan, reason)
                return expected
        if call.done:
            count_program(self)
            return result
        reason = call.aside or _NOT_ALL
        count_aside(self, plan, reason)
        if call.next == 0:  # each layer ran its own code
            return result
    else:
        count_aside(self, plan, reason)
    return own()


def deferred_layer(self, *args, **kwargs):
    """Takes the place of the forward of each layer."""
    call: Any = None if torch.compiler.is_compiling() else getattr(_running, "call", None)
    index = -1 if call is None else call.plan.places.get(id(self), -1)
    given = signature_of(type(self).forward).bind(args, kwargs) if index >= 0 else None
    if given:
        result = call.take(index, given)
        if result is not None:
            values = call.plan.stack.tuples
            return (result, *[None] * (values - 1)) if values else result
    return type(self).forward(self, *args, **kwargs)
