"""What a causal model computes after its decoder: its own code from the last hidden states to logits, as part of a captured step."""

import itertools
import threading
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.transformers.arguments import IDS
from layerzero.integrations.transformers.run.blocks import write_guard
from layerzero.integrations.transformers.run.plan import facts_of
from layerzero.integrations.transformers.structure import functions_of, hooks_of

_within = threading.local()  # .given: what the decoder of the head that runs in this thread returns
_numbers = itertools.count()
CHANGED = "the model's head was changed"


class _Given:
    def __init__(self, base: Any, ids: torch.Tensor, hidden: torch.Tensor) -> None:
        self.base, self.ids, self.hidden = base, ids, hidden
        self.calls = 0


def hidden_for(base: Any, plan: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """For a decoder's forward: the hidden states that it returns within a head, None in all other calls."""
    given = getattr(_within, "given", None)
    if given is None or given.base is not base:
        return None
    bound = plan.signature.bind(args, kwargs)
    if bound is None or bound.get(IDS) is not given.ids:
        raise ValueError("the model changes what its decoder is called with")
    given.calls += 1
    hidden: torch.Tensor = given.hidden
    return hidden


class Head:
    """The head of a model with its weights as they are. number: of no other head of the process."""

    def __init__(self, model: Any, base: Any) -> None:
        self.model, self.base, self.number = model, base, next(_numbers)
        within = {*base.modules()}
        modules = [part for part in model.modules() if part not in within]
        self.classes = [(type(part), type(part).forward) for part in modules]
        self.modules = modules
        self.hooks = [table for part in modules for table in hooks_of(part)]
        self.written = write_guard([p.__dict__ for p in modules if "_layerzero_blocks" in p.__dict__])
        facts = [fact for part in modules for fact in facts_of(part, functions_of(type(part).forward))]
        facts = [fact for fact in facts if fact[1] != "generation_config"]  # which `generate` reads
        facts += [
            (part.__dict__, name)
            for part in modules
            for name in ("forward", "training", "_hf_hook", "_layerzero_blocks")
        ]
        parts = [(part._modules, tuple(part._modules.values())) for part in modules if part._modules]
        weights = [(table, name) for p in modules for table in (p._parameters, p._buffers) for name in table]
        valued = [[(table, name, table.get(name)) for table, name in entries] for entries in (facts, weights)]
        tensors = [entry for entry in valued[1] if isinstance(entry[2], torch.Tensor)]
        absent = [entry for entry in valued[1] if not isinstance(entry[2], torch.Tensor)]
        self.guarded = parts, valued[0] + absent, tensors
        self.guard = _layerzero.guard(*self.guarded)
        self.alone: list[str | None] = []  # what `why_not_alone` has found

    def why_changed(self) -> str | None:
        if any(self.hooks) or any("_hf_hook" in part.__dict__ for part in self.modules):
            return "the model's head has hooks"
        same = _layerzero.unchanged(self.guard) and not self.written()
        if not same or any(type(p).forward is not own for p, (_, own) in zip(self.modules, self.classes, strict=True)):
            return CHANGED
        return None

    def why_not_alone(self, ids: torch.Tensor, hidden: torch.Tensor) -> str | None:
        """None, or why the head cannot run without the decoder, which is tried once. ids: (b, 1) int64; hidden: (b, 1, width)."""
        if not self.alone:
            self.alone.append(self._why_not_alone(ids, hidden))
        return self.alone[0]

    def _why_not_alone(self, ids: torch.Tensor, hidden: torch.Tensor) -> str | None:
        try:
            logits = self(ids, hidden)
        except Exception as error:  # of a model's own code, which may want anything
            return f"its head cannot run alone: {type(error).__name__}: {str(error)[:200]}"
        if logits.dim() != 2 or len(logits) != len(ids) or logits.device != ids.device:
            return "its head returns no logits of the last position on the device of the ids"
        return None

    def __call__(self, ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (b, vocab) of the last position."""
        given = _within.given = _Given(self.base, ids, hidden)
        try:
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, return_dict=True).logits
        finally:
            _within.given = None
        if given.calls != 1:
            raise ValueError(f"the model calls its decoder {given.calls} times for its logits")
        return logits[:, -1]
