"""Policy set from code: for the process, or for a block of one thread or task."""

import contextlib
import contextvars
import functools
import inspect
import json
import os
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.errors import WrongTypeError

_scope: contextvars.ContextVar[int] = contextvars.ContextVar("layerzero_policy", default=0)
# The open blocks of this context, all in one variable, because a context keeps every variable that it has seen.
_entered: contextvars.ContextVar[tuple[contextvars.Token[int], ...]] = contextvars.ContextVar(
    "layerzero_policy_blocks", default=()
)
_guard = threading.Lock()
_asked = False
_changes = 0  # number of changes of the process's policy made by this module

# The binding calls this C function to get the policy of a call.
scope_of_context = _scope.get


_NAMING = frozenset(("prefer_sources", "avoid_sources", "allow_sources", "locks", "rules"))


def _know_names(keys: Iterable[str]) -> None:
    """Registers all descriptors if `keys` name kernels or libraries: the engine checks such names."""
    if not _NAMING.isdisjoint(keys):
        from layerzero import backends

        backends.register_files()


def configure(**keys: Any) -> None:
    """Sets keys of layerzero.yaml for the process: configure(strict_mode=True, cache={"max_size": 100})."""
    global _changes
    _know_names(keys)
    with _guard:
        _layerzero.configure(json.dumps(keys))
        _changes += 1


def load_config(path: str | os.PathLike[str]) -> None:
    """Uses `path` instead of the project file, whatever its name; the other layers are unchanged."""
    global _changes
    _know_names(_NAMING)
    with _guard:
        _layerzero.load_config(os.fspath(path))
        _changes += 1


def lock(op: str, kernel_id: str) -> None:
    """Makes every call of `op` (an id, an alias or a group) run `kernel_id` or raise."""
    configure(locks={op: kernel_id})


def unlock(op: str) -> None:
    """Removes a lock of this name, wherever it was set."""
    configure(locks={op: None})


class policy(contextlib.ContextDecorator):
    """Sets keys of layerzero.yaml for the calls of a block or of a decorated function, in this thread or task only.

    A task or thread that is started inside with a copy of the context inherits them.
    """

    def __init__(self, **keys: Any) -> None:
        self._keys = keys
        self._json = json.dumps(keys)
        _know_names(keys)
        _layerzero.policy_scope(0, self._json)  # a wrong key is an error here, not at the first use

    def __repr__(self) -> str:
        return f"layerzero.policy({', '.join(f'{key}={value!r}' for key, value in self._keys.items())})"

    def __enter__(self) -> "policy":
        scope = _layerzero.policy_scope(_scope.get(), self._json)
        _ask_from_now_on()
        _entered.set((*_entered.get(), _scope.set(scope)))
        return self

    def __exit__(self, *_: object) -> None:
        *rest, token = _entered.get()
        _entered.set(tuple(rest))
        _scope.reset(token)

    def __call__(self, function: Any) -> Any:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_scope(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return in_scope
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise WrongTypeError(function.__name__, "a function or coroutine", "a generator", "use `with` inside it")
        return super().__call__(function)


def _ask_from_now_on() -> None:
    # A task that copied its context inside a scope may outlive the block, so once a scope has been opened, every call
    # reads its context (about 30 ns).
    global _asked
    if not _asked:
        _asked = True
        _layerzero.open_scopes(1)


def prefer(source: str) -> policy:
    """`with lz.prefer("torch"):` the library's kernels are chosen if they are within the tolerance."""
    return policy(prefer_sources=[source])


def disabled() -> policy:
    """`with lz.disabled():` references only."""
    return policy(enabled=False)


class _Traits(NamedTuple):
    has_locks: bool
    is_strict: bool
    allowed_sources: tuple[str, ...]
    names_kernels: bool


@functools.lru_cache(maxsize=64)
def _traits(scope: int, changes: int) -> _Traits:
    keys = {name: entry["value"] for name, entry in json.loads(_layerzero.policy_text(scope))["keys"].items()}
    return _Traits(
        has_locks=bool(keys["locks"]) or "lock" in json.dumps(keys["rules"]),
        is_strict=bool(keys["strict_mode"]),
        allowed_sources=tuple(keys["allow_sources"]),
        names_kernels=any(keys[name] for name in _NAMING),
    )


def has_locks() -> bool:
    """True if a lock may apply to some call in the current context."""
    return _traits(_scope.get(), _changes).has_locks


def is_strict() -> bool:
    """True if strict_mode is set in the current context."""
    return _traits(_scope.get(), _changes).is_strict


def allowed_sources() -> tuple[str, ...]:
    """Returns `allow_sources` of the current context; if empty, every library is allowed."""
    return _traits(_scope.get(), _changes).allowed_sources


def names_kernels() -> bool:
    """True if the policy of the current context names libraries or kernels."""
    return _traits(_scope.get(), _changes).names_kernels


def policy_in_force() -> dict[str, Any]:
    """Returns every key with its value and origin, in the current context."""
    return json.loads(_layerzero.policy_text(_scope.get()))
