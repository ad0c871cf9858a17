"""Policy set from code: for the process, or for a block of one thread or task."""

import contextlib
import contextvars
import functools
import inspect
import json
import os
from collections.abc import Iterable
from typing import Any

from layerzero import _layerzero, backends
from layerzero.contracts import flat_name
from layerzero.errors import ConfigError, WrongTypeError
from layerzero.host import exports, forks, measuring, pipelines
from layerzero.host.policy import NAMING, note_change, scope
from layerzero.host.typed import typed

# The open blocks of this context, each with the scope around it; in one variable, because a context keeps every variable
# that it has seen.
_entered: contextvars.ContextVar[tuple[tuple["policy", int], ...]] = contextvars.ContextVar(
    "layerzero_policy_blocks", default=()
)
_guard = forks.lock()
_reads_scopes = False


def _know_names(keys: Iterable[str]) -> None:
    """Registers all descriptors if `keys` name kernels or libraries: the engine checks such names."""
    if not NAMING.isdisjoint(keys):
        backends.register_files()


def _text(keys: dict[str, Any]) -> str:
    """Returns keys as JSON: paths are texts there, and NumPy's numbers numbers."""
    try:
        return json.dumps(keys, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError("policy", "numbers, texts, lists and dicts, as in layerzero.yaml", str(error)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__} {value!r}"[:100])


def _apply() -> None:
    """What the process does besides calls, as its policy says now."""
    exports.apply()
    measuring.apply()
    pipelines.apply()


def configure(**keys: Any) -> None:
    """Sets keys of layerzero.yaml for the process: configure(strict_mode=True, cache={"max_size": 100})."""
    _know_names(keys)
    with _guard:
        _layerzero.configure(_text(keys))
        note_change()
    backends.isolation_changed()
    if "security" in keys:
        backends.policy_changed()
    _apply()


@typed
def load_config(path: str | os.PathLike[str]) -> None:
    """Uses `path` instead of the project file, whatever its name; the other layers are unchanged."""
    _know_names(NAMING)
    with _guard:
        _layerzero.load_config(_path(path))
        note_change()
    backends.isolation_changed()
    backends.policy_changed()
    _apply()


@typed
def lock(op: Any, kernel_id: str) -> None:
    """Makes every call of `op` (an id, an alias, a group or a function of this module) run `kernel_id` or raise."""
    configure(locks={_name(op): kernel_id})


def unlock(op: Any) -> None:
    """Removes a lock of this name, wherever it was set."""
    configure(locks={_name(op): None})


def _path(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if "\0" in text:
        raise ConfigError("load_config: path", "a path", "one with a zero byte")
    return text


def _name(op: Any) -> str:
    return op if isinstance(op, str) else flat_name(op)


class policy(contextlib.ContextDecorator):
    """Sets keys of layerzero.yaml for the calls of a block or of a decorated function, in this thread or task only.

    A task or thread that is started inside with a copy of the context inherits them.
    """

    def __init__(self, **keys: Any) -> None:
        self._keys = keys
        self._json = _text(keys)
        _know_names(keys)
        _layerzero.policy_scope(0, self._json)  # a wrong key is an error here, not at the first use

    def __repr__(self) -> str:
        return f"layerzero.policy({', '.join(f'{key}={value!r}' for key, value in self._keys.items())})"

    def __enter__(self) -> "policy":
        outer = scope.get()
        inner = _layerzero.policy_scope(outer, self._json)
        _read_scopes()
        _entered.set((*_entered.get(), (self, outer)))
        scope.set(inner)
        return self

    def __exit__(self, *_: object) -> None:
        entered = [*_entered.get()]
        places = [place for place, (owner, _) in enumerate(entered) if owner is self]
        if not places:
            from layerzero.host import blocks

            raise blocks.not_entered(type(self).__name__)
        now = entered.pop(places[-1])[1]
        for place in range(places[-1], len(entered)):  # blocks of generators may end in another order than they began
            entered[place] = (entered[place][0], now)
            now = _layerzero.policy_scope(now, entered[place][0]._json)
        _entered.set(tuple(entered))
        scope.set(now)

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


def _read_scopes() -> None:
    # A task that copied its context inside a scope may outlive the block, so once a scope has been opened, every call
    # reads its context (about 30 ns).
    global _reads_scopes
    if not _reads_scopes:
        _reads_scopes = True
        _layerzero.open_scopes(1)


@typed
def prefer(source: str) -> policy:
    """Prefers a library in a `with lz.prefer("torch"):` block: its kernels are chosen if they are within the tolerance."""
    return policy(prefer_sources=[source])


def disabled() -> policy:
    """Runs the calls of a `with lz.disabled():` block on their references only."""
    return policy(enabled=False)


class shadow(policy):
    """Compares the fraction `rate` of the calls in a `with` block with the operation's reference.

    with lz.shadow(rate=0.01, keep_inputs="wrong/"): model(x)

    A result that differs by more than the operation's tolerance never reaches the caller: the kernel is quarantined for
    such calls, and the next best one answers; a locked kernel's call raises KernelExecutionError instead. Calls on a GPU
    are compared in the background: a wrong result reaches the caller, and the kernel is not selected from then on.
    keep_inputs: a folder that gets the inputs of up to 16 wrong calls as .npy files, with call.json. Calls of this thread
    or task only, as with lz.policy. Not compared: operations that write their inputs. `lz.health()["shadow"]` counts the
    calls that were compared.
    """

    @typed
    def __init__(self, rate: float = 1.0, *, keep_inputs: str | os.PathLike[str] = "") -> None:
        folder = os.fspath(keep_inputs)
        super().__init__(health={"shadow_rate": rate} | ({"keep_inputs": folder} if folder else {}))

    def __enter__(self) -> "shadow":
        super().__enter__()
        _layerzero.shadow(1)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _layerzero.shadow(-1)
