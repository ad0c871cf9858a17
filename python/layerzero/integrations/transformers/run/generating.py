"""Transformers' loop of `generate` for greedy decoding and sampling, where the next token is chosen inside of captured steps.

The loop is `GenerationMixin._sample`'s, but a step has left its tokens where the next one reads them, so the next one is launched
before the host has waited for them; whether all sequences have ended is known one launch late, and a step too much is undone.
What this loop does not take runs as before, and the report of `kernelize` has the reason under `chosen_outside`.
"""

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.utils import GenerateDecoderOnlyOutput

from layerzero.integrations.transformers.arguments import (
    CACHE,
    IDS,
    MASK,
    POSITIONS,
    USE_CACHE,
    cache_field,
    signature_of,
)
from layerzero.integrations.transformers.caches import rows_cache
from layerzero.integrations.transformers.counts import count, count_program
from layerzero.integrations.transformers.run import captured, choosing, decoder
from layerzero.integrations.transformers.run.choosing import Choice
from layerzero.integrations.transformers.run.head import Head
from layerzero.integrations.transformers.run.loop_inputs import Landed, LoopInputs

_METHODS = (
    "prepare_inputs_for_generation",
    "_update_model_kwargs_for_generation",
    "_prefill",
    "_optimize_model_for_decode",
)
_PARAMETERS = "self input_ids logits_processor stopping_criteria generation_config synced_gpus streamer model_kwargs"
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
_READ = {MASK, POSITIONS, CACHE, USE_CACHE, "logits_to_keep"}
SAMPLING = "_layerzero_sampling"  # in a model's __dict__: what `kernelize` was given
_MOST_KINDS = 8  # of sampling, each of which has graphs of its own


def register() -> None:
    """Makes `generate` of kernelized models use this loop; may be called again."""
    original: Any = GenerationMixin._sample
    known = " ".join(inspect.signature(original).parameters) == _PARAMETERS
    if hasattr(original, "_layerzero_original") or not known or not all(hasattr(GenerationMixin, m) for m in _METHODS):
        return

    @functools.wraps(original)
    def _sample(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
        base = getattr(self, "base_model", None)
        plan = getattr(base, "__dict__", {}).get("_layerzero_decoder")
        if not isinstance(plan, decoder.DecoderPlan) or torch.compiler.is_compiling():
            return original(self, input_ids, *args, **kwargs)
        given = inspect.signature(original).bind(self, input_ids, *args, **kwargs)
        given.apply_defaults()
        arguments = {name: value for name, value in given.arguments.items() if name != "self"}
        loop = _Loop(plan, self, **arguments)
        reason = loop.why_not()
        if reason is None:
            return loop.run()
        if input_ids.device.type in decoder.CAPTURING:
            count(base, "chosen_outside", reason)
        return original(self, input_ids, *args, **kwargs)

    _sample._layerzero_original = original  # type: ignore[attr-defined]
    GenerationMixin._sample = _sample  # type: ignore[method-assign]


class _Loop:
    """One call of `generate`. The arguments after `plan` are those of `_sample`."""

    def __init__(
        self,
        plan: Any,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool,
        streamer: Any,
        model_kwargs: dict[str, Any],
    ) -> None:
        self.plan, self.model, self.base = plan, model, model.base_model
        self.ids, self.processors, self.criteria = input_ids, logits_processor, stopping_criteria
        self.config, self.synced, self.streamer, self.kwargs = generation_config, synced_gpus, streamer, model_kwargs
        self.roles = signature_of(type(self.base).forward)
        self.given = {self.roles.role_of(name): value for name, value in model_kwargs.items() if value is not None}
        self.cache: Any = self.given.get(CACHE)
        self.batch = len(input_ids)
        self.past = 0  # positions that the cache holds
        self.missed = 0  # steps of which `kwargs` knows nothing
        self.inputs: Any = None  # a LoopInputs
        self.choice: Any = None  # None: steps run by the model's own call
        self.pad: int | None = None  # the token of finished sequences; None where no sequence ends alone
        self.unfinished: Any = None  # (b,) bool

    def why_not(self) -> str | None:
        """None, or why Transformers' own loop has to run."""
        last = self.ids[:, -1:]
        reason = captured.why_not(last, self.cache) if self.ids.dim() == 2 and self.ids.shape[1] else "it has no ids"
        if reason:
            return reason
        if self.synced or self.config.is_assistant:
            return "it is synchronized between devices, or it assists another model"
        if self.config.return_dict_in_generate and any(getattr(self.config, name, False) for name in _OUTPUTS):
            return "scores, logits, attentions or hidden states of each step are asked for"
        others = [name for name, value in self.given.items() if name not in _READ and value is not False]
        if others or not self.given.get(USE_CACHE):
            return f"{others[0]} is given" if others else "no cache is asked for"
        reason = choosing.why_not(self.processors)
        if reason:
            return reason
        kind: Any = type(self.model)
        own = [name for name in _METHODS if getattr(kind, name) is not getattr(GenerationMixin, name)]
        if own:
            return f"the model has its own {own[0]}"
        if self.model._valid_auto_compile_criteria(self.kwargs, self.config):
            return "its forward is compiled"
        if self.plan.layers is None:
            self.plan.build(self.base)
        return decoder.why_aside(self.base, self.plan, {IDS: last, CACHE: self.cache}) or self._why_no_choice(last)

    def _why_no_choice(self, last: torch.Tensor) -> str | None:
        """Makes the choice. last: (b, 1) ids."""
        if self.plan.guard is None:
            return "nothing watches the weights"
        head = self.plan.head(self.model, lambda: Head(self.model, self.base))
        weight = self.plan.embedding["weight"]
        hidden = weight.new_zeros(self.batch, 1, weight.shape[1])
        reason = head.why_changed() or head.why_not_alone(last, hidden)
        if reason:
            return reason
        ends = any(hasattr(criterion, "eos_token_id") for criterion in self.criteria)
        self.pad = int(self.config._pad_token_tensor) if ends else None
        own = self.model.__dict__.get(SAMPLING) == "layerzero"
        choice = Choice(head, self.processors, bool(self.config.do_sample), self.pad, own)
        kinds = self.plan.made("kinds of sampling", set)
        if choice.samples and len(kinds | {tuple(choice.kinds)}) > _MOST_KINDS:
            return f"more than {_MOST_KINDS} settings of sampling were asked for"
        kinds.update([tuple(choice.kinds)] if choice.samples else [])
        self.choice = choice
        return None

    def run(self) -> Any:
        self.unfinished = torch.ones(self.batch, dtype=torch.bool, device=self.ids.device)
        self.inputs = LoopInputs(*self._mask_and_positions())
        tokens = self._own_tokens(self.model._prefill(self.ids, self.config, self.kwargs, is_first_iteration=True))
        self.past = decoder.length_of(self.cache)
        decode: Any = self.model._optimize_model_for_decode()
        with decode:
            while True:
                known = tokens.clamp(min=0) if self.config.do_sample else tokens  # ids alone, also of rows that failed
                self.ids = torch.cat([self.ids, known[:, None]], dim=-1)
                self.unfinished.logical_and_(self.criteria(self.ids, None).logical_not())
                landed = Landed(torch.cat([self.unfinished.long(), tokens]))
                most = self.criteria.max_length
                with self._undone() as ahead:
                    if self.choice is not None and (most is None or self.ids.shape[1] < most):
                        ahead += self._step(known)
                    unfinished, found = landed.wait().split(self.batch)
                    if self.config.do_sample and bool((found < 0).any()):
                        raise RuntimeError(choosing.NO_DISTRIBUTION)
                    if self.streamer is not None:
                        self.streamer.put(found)
                    if not unfinished.any():
                        break
                    tokens = ahead.pop() if ahead else self._own_step()
        return self._result()

    @contextlib.contextmanager
    def _undone(self) -> Iterator[list[torch.Tensor]]:
        """A list of a step that is launched ahead; a step that is in it at the end leaves no trace."""
        ahead: list[torch.Tensor] = []
        choice, device = self.choice, self.ids.device
        state = None if choice is None else choice.generator_state(device)
        try:
            yield ahead
        finally:
            if ahead:
                choice.set_generator_state(device, state)
                rows_cache.appended(self.cache, -1)

    def _own_step(self) -> torch.Tensor:
        """The tokens (b,) of the next step by the model's own call."""
        if self.missed:
            self.kwargs = self.model._update_model_kwargs_for_generation({}, self.kwargs, num_new_tokens=self.missed)
            self.missed = 0
        inputs = self.model.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self.kwargs)
        return self._own_tokens(self.model(**inputs, return_dict=True))

    def _own_tokens(self, outputs: Any) -> torch.Tensor:
        """What Transformers' loop chooses after a call of the model; -1 for a row without a distribution."""
        self.kwargs = self.model._update_model_kwargs_for_generation(outputs, self.kwargs)
        scores = outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=self.ids.device)
        return choosing.choose(self.processors(self.ids, scores), self.config.do_sample, self.pad, self.unfinished)

    def _step(self, last: torch.Tensor) -> list[torch.Tensor]:
        """The tokens (b,) of a captured step; none if it cannot be one: the further ones of this call are not either. last: those
        of the step before."""
        plan, choice = self.plan, self.choice
        reason = plan.why_changed() or choice.head.why_changed() or captured.why_not(last[:, None], self.cache)
        found = None if reason else decoder.steps_over(self.base, plan, self.cache, self.past, self.batch, 1)
        if found is None:
            count(self.base, "chosen_outside", reason or "its cache has no room for a captured step")
            self.choice = None
            return []
        steps, rows = found
        choice.at(self.ids.shape[1], self.batch)
        at = rows[0].shape[1], self.past
        inputs = self.inputs.next(*at) or self.inputs.first(last, self.unfinished, *self._mask_and_positions(), *at)
        tokens = decoder.run_step(self.base, steps, inputs, self.cache, rows, self.past, choice)
        self.past, self.missed = self.past + 1, self.missed + 1
        self.inputs.inputs, self.unfinished = choice.inputs, choice.inputs.unfinished
        count_program(self.base)
        count(self.base, "chosen")
        return [tokens]

    def _mask_and_positions(self) -> tuple[Any, Any]:
        given = {self.roles.role_of(name): value for name, value in self.kwargs.items()}
        return given.get(MASK), given.get(POSITIONS)

    def _result(self) -> Any:
        if self.streamer is not None:
            self.streamer.end()
        if not self.config.return_dict_in_generate:
            return self.ids
        kind: Any = GenerateDecoderOnlyOutput
        return kind(sequences=self.ids, **{cache_field(kind) or CACHE: self.cache})
