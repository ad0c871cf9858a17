"""The arguments of a forward by their role. Transformers renames arguments from release to release (`past_key_values` of 5.23
is `cache` in 5.24), so the signature of the forward that is called says which name a role has there.
"""

import dataclasses
import functools
import inspect
import re
from typing import Any

import torch

# Roles. Code of LayerZero reads what `Signature.bind` returns under these.
IDS, EMBEDDED = "input_ids", "inputs_embeds"
CACHE, USE_CACHE = "cache", "use_cache"
MASK, POSITIONS, TABLES = "attention_mask", "position_ids", "position_embeddings"
ENCODED, ENCODED_MASK = "encoder_hidden_states", "encoder_attention_mask"

# The names that releases gave to a role besides its own. A call may use each, whatever the signature says: Transformers
# accepts earlier names for some releases.
_FORMER = dict.fromkeys(("past_key_values", "cache_params", "layer_past", "past_key_value"), CACHE)
UNREADABLE = "an argument is given twice, or there are more than the forward takes"
_CACHE_TYPE = re.compile(r"\b\w*Cache\b")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Signature:
    """The arguments of a forward, a function whose first parameter is the module."""

    def __init__(self, forward: Any) -> None:
        parameters = [*inspect.signature(forward).parameters.values()][1:]
        self.positional = [p.name for p in parameters if p.kind in _POSITIONAL]
        self.names = {p.name for p in parameters}
        self._roles = dict(_FORMER)
        if not self.names & {CACHE, *_FORMER}:  # a name that is in no table: the type of the argument decides
            self._roles |= {p.name: CACHE for p in parameters if _CACHE_TYPE.search(str(p.annotation))}

    def bind(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Role, or the argument's own name where it has none -> value, that of the first parameter first; None for a call
        that the forward's own code has to see: with an argument too many, or with one given twice.
        """
        given = dict(zip(self.positional, args, strict=False))
        first = self.positional[:1]
        given |= {name: kwargs[name] for name in first if name in kwargs and not args} | kwargs
        bound = {self._roles.get(name, name): value for name, value in given.items()}
        return bound if len(bound) == len(args) + len(kwargs) else None

    def name_of(self, role: str) -> str | None:
        """The name that the forward has for a role; None if it has no such parameter."""
        return next((name for name in (role, *self._roles) if name in self.names and self.role_of(name) == role), None)

    def role_of(self, name: str) -> str:
        return self._roles.get(name, name)


@functools.lru_cache(maxsize=256)
def signature_of(forward: Any) -> Signature:
    return Signature(forward)


def cache_argument(model: Any, cache: Any) -> dict[str, Any]:
    """The keyword argument by which a model's forward, and so its `generate`, takes a cache."""
    return {signature_of(type(model).forward).name_of(CACHE) or CACHE: cache}


def without_cache(model: Any) -> dict[str, Any]:
    """The keyword argument that asks a model's forward for no cache; none where it has no such argument."""
    return {USE_CACHE: False} if USE_CACHE in signature_of(type(model).forward).names else {}


def cache_of(result: Any) -> Any:
    """The cache in what a forward returned, or None."""
    kind: Any = type(result)
    return getattr(result, cache_field(kind) or "", None)


@functools.lru_cache(maxsize=256)
def cache_field(kind: Any) -> str | None:
    """The name of the cache in a class of results; None where those have none."""
    names = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return next((name for name in (CACHE, *_FORMER) if name in names), None)


def tables_of(embeddings: Any) -> tuple[Any, Any]:
    """(cos, sin) of what layers get as position_embeddings, which may be one complex tensor; (None, None) of anything else."""
    if isinstance(embeddings, torch.Tensor) and embeddings.is_complex():
        return embeddings.real.contiguous(), embeddings.imag.contiguous()
    return embeddings if isinstance(embeddings, tuple) and len(embeddings) == 2 else (None, None)
