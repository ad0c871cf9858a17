"""The policy of the current context, as far as Python code reads it."""

import contextvars
import functools
import json
from typing import Any, NamedTuple

from layerzero import _layerzero

# Keys that name kernels or libraries.
NAMING = frozenset(("prefer_sources", "avoid_sources", "allow_sources", "locks", "rules"))
scope: contextvars.ContextVar[int] = contextvars.ContextVar("layerzero_policy", default=0)
# The binding calls this C function to get the policy of a call.
scope_of_context = scope.get
_changes = 0  # number of changes of the process's policy by this module's callers


def note_change() -> None:
    """Makes the functions below read the policy again. Called with each change of the process's policy."""
    global _changes
    _changes += 1


class _Traits(NamedTuple):
    has_locks: bool
    is_strict: bool
    allowed_sources: tuple[str, ...]
    names_kernels: bool


@functools.lru_cache(maxsize=64)
def _traits(scope_id: int, changes: int) -> _Traits:
    keys = {name: entry["value"] for name, entry in json.loads(_layerzero.policy_text(scope_id))["keys"].items()}
    return _Traits(
        has_locks=bool(keys["locks"]) or "lock" in json.dumps(keys["rules"]),
        is_strict=bool(keys["strict_mode"]),
        allowed_sources=tuple(keys["allow_sources"]),
        names_kernels=any(keys[name] for name in NAMING),
    )


def has_locks() -> bool:
    """True if a lock may apply to some call in the current context."""
    return _traits(scope.get(), _changes).has_locks


def is_strict() -> bool:
    """True if strict_mode is set in the current context."""
    return _traits(scope.get(), _changes).is_strict


def allowed_sources() -> tuple[str, ...]:
    """Returns `allow_sources` of the current context; if empty, every library is allowed."""
    return _traits(scope.get(), _changes).allowed_sources


def names_kernels() -> bool:
    """True if the policy of the current context names libraries or kernels."""
    return _traits(scope.get(), _changes).names_kernels


def policy_in_force() -> dict[str, Any]:
    """Returns every key with its value and origin, in the current context."""
    return json.loads(_layerzero.policy_text(scope.get()))
