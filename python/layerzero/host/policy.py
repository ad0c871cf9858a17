"""The policy of the current context, as far as Python code reads it."""

import contextvars
import functools
import json
import os
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from layerzero import _layerzero

# Keys that name kernels or libraries.
NAMING = frozenset(
    ("prefer_sources", "avoid_sources", "allow_sources", "locks", "rules", "backend_isolation", "backend_containers")
)
IN_PROCESS = "in_process"
# Libraries that backend_isolation's default is not about: torch, which this process has anyway, what must answer when a
# worker does not, and tokenizers, which are objects of this process.
AT_HOME = frozenset(("torch", "torch.ref", "inductor", "tokenizers", "tiktoken", "sentencepiece"))
WORKER = "_LAYERZERO_WORKER"  # variable of a worker's environment
in_worker = os.environ.pop(WORKER, None) is not None  # this process runs kernels for another one
scope: contextvars.ContextVar[int] = contextvars.ContextVar("layerzero_policy", default=0)
# The binding calls this C function to get the policy of a call.
scope_of_context = scope.get
_changes = 0  # number of changes of the process's policy by this module's callers


def note_change() -> None:
    """Makes the functions below read the policy again. Called with each change of the process's policy."""
    global _changes
    _changes += 1


class Isolation(NamedTuple):
    """Where Python kernels run, and the limits of workers."""

    modes: dict[str, str]  # by library; "default": of the others
    containers: dict[str, dict[str, Any]]
    timeout_s: float
    start_timeout_s: float
    arena_mb: int
    memory_mb: int
    try_imports: bool

    def mode_of(self, library: str) -> str:
        """Returns "in_process", "subprocess" or "container"."""
        if in_worker:
            return IN_PROCESS
        mode = self.modes.get(library)
        return mode if mode is not None else IN_PROCESS if library in AT_HOME else self.modes["default"]

    def container_of(self, library: str) -> dict[str, Any]:
        """Returns image, arguments, gpu_passthrough and ipc."""
        return self.containers.get(library) or self.containers.get("default", {})


class Jit(NamedTuple):
    """How kernels are compiled while the process runs (the policy's section `jit`)."""

    enable_background_compile: bool
    compile_queue_max_size: int
    max_concurrent_jit: int
    memory_mb: int
    manifest_path: str
    manifest_stale_days: float
    cache_max_mb: int
    headroom_mb: int  # memory_headroom_mb


class TokenizerCache(NamedTuple):
    """What a TokenCache keeps apart, and how often it compares its hits (the policy's section `tokenizer_cache`)."""

    enable_namespace_isolation: bool
    validation_rate_initial: float
    validation_rate_warmup: float
    validation_rate_stable: float


class _Traits(NamedTuple):
    is_enabled: bool
    has_locks: bool
    is_strict: bool
    allowed_sources: tuple[str, ...]
    names_kernels: bool
    may_measure: bool
    samples_runs: bool
    isolation: Isolation
    jit: Jit
    tokenizer_cache: TokenizerCache


@functools.lru_cache(maxsize=64)
def _traits(scope_id: int, changes: int) -> _Traits:
    keys = {name: entry["value"] for name, entry in json.loads(_layerzero.policy_text(scope_id))["keys"].items()}
    names = any(keys[name] for name in NAMING - {"backend_isolation"}) or len(keys["backend_isolation"]) > 1
    return _Traits(
        is_enabled=bool(keys["enabled"]),
        has_locks=bool(keys["locks"]) or "lock" in json.dumps(keys["rules"]),
        is_strict=bool(keys["strict_mode"]),
        allowed_sources=tuple(keys["allow_sources"]),
        names_kernels=names,
        may_measure=keys["perfdb.enabled"] and not (names or keys["table"] or keys["deterministic"]),
        samples_runs=keys["health.shadow_rate"] > 0 or keys["perfdb.sample_rate"] > 0,
        isolation=Isolation(
            keys["backend_isolation"],
            keys["backend_containers"],
            *(keys[f"isolation.{name}"] for name in Isolation._fields[2:]),
        ),
        jit=Jit(**{n: keys[f"jit.{n}"] for n in Jit._fields[:-1]}, headroom_mb=keys["memory_headroom_mb"]),
        tokenizer_cache=TokenizerCache(*(keys[f"tokenizer_cache.{name}"] for name in TokenizerCache._fields)),
    )


def is_enabled() -> bool:
    """False while the current context runs references only: `enabled: false`, `lz.disabled()`, LAYERZERO_DISABLED."""
    return _traits(scope.get(), _changes).is_enabled


def has_locks() -> bool:
    """True if a lock may apply to some call in the current context."""
    return _traits(scope.get(), _changes).has_locks


def is_strict() -> bool:
    """True if strict_mode is set in the current context."""
    return _traits(scope.get(), _changes).is_strict


def allowed_sources() -> tuple[str, ...]:
    """Returns `allow_sources` of the current context; if empty, every library is allowed."""
    return _traits(scope.get(), _changes).allowed_sources


def is_allowed(*names: str) -> bool:
    """True if `allow_sources` of the current context admits one of these names of a library."""
    allowed = allowed_sources()
    return not allowed or any(fnmatchcase(name, glob) for name in names for glob in allowed)


def names_kernels() -> bool:
    """True if the policy of the current context names libraries or kernels."""
    return _traits(scope.get(), _changes).names_kernels


def may_measure() -> bool:
    """True if a time that is measured now may choose a kernel in the current context: the policy names no libraries or kernels,
    has no dispatch table, does not ask for the same choice each time, and lets measured times decide."""
    return _traits(scope.get(), _changes).may_measure


def samples_runs() -> bool:
    """True if runs of kernels are compared or timed in the current context, whether or not anybody asked for this one."""
    return _traits(scope.get(), _changes).samples_runs


def isolation() -> Isolation:
    """Returns where Python kernels run in this process."""
    return _traits(0, _changes).isolation


def jit_settings() -> Jit:
    """Returns how this process compiles kernels."""
    return _traits(0, _changes).jit


def token_cache_rules() -> TokenizerCache:
    """Returns the rules of token caches in the current context."""
    return _traits(scope.get(), _changes).tokenizer_cache


def token_cache_rules_now() -> TokenizerCache:
    """Returns the same, read again: between a change of the policy and `note_change` what is kept is older than the engine's."""
    return _traits.__wrapped__(scope.get(), _changes).tokenizer_cache


def policy_in_force() -> dict[str, Any]:
    """Returns every key with its value and origin, in the current context."""
    return json.loads(_layerzero.policy_text(scope.get()))
