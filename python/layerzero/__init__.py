"""LayerZero: one call per inference operation, the best installed kernel for it, a reason for every choice.

import layerzero as lz
y = lz.rms_norm(x, weight)                      # every operation is a function of this module
print(lz.explain("rms_norm", x, weight))        # why this kernel, and why not the others
with lz.policy(deterministic=True): ...         # policy for this thread or task
"""

import importlib
import warnings
from typing import Any, NamedTuple

try:
    from layerzero import _layerzero
except ImportError as _error:
    if not _error.path:  # the library loads and its own message says why it does not start
        raise
    import platform

    raise ImportError(
        f"layerzero does not load on this machine ({platform.system()}, {platform.machine()}, Python "
        f"{platform.python_version()}): {_error}. Its wheels are for Linux on x86-64 and Python 3.10 or newer; from a "
        "clone type: make build",
        name="layerzero",
    ) from None
from layerzero import backends, errors
from layerzero.backends.python_kernels import register_kernel, unregister_kernel
from layerzero.errors import (
    ConfigError,
    ContextLostError,
    CudaGraphUnsafeError,
    FileError,
    InternalError,
    InvalidRequestError,
    KernelExecutionError,
    KernelRefusedError,
    KVCacheFullError,
    LayerZeroCompatibilityWarning,
    LayerZeroError,
    LayerZeroGraphMemoryWarning,
    LayerZeroLayoutWarning,
    LayerZeroReferenceWarning,
    ModelStateError,
    NoKernelFoundError,
    NotInstalledError,
    OutOfMemoryError,
    Reason,
    ReleasedWeightError,
    RequirementError,
    UnknownNameError,
    UntrustedFileError,
    VersionMismatchError,
    WorkerError,
    WrongTypeError,
)
from layerzero.host import compilation as _compilation
from layerzero.host import end as _end
from layerzero.host import exports as _exports
from layerzero.host import log as _log
from layerzero.host import measuring as _measuring
from layerzero.host import memory as _memory
from layerzero.host import optional as _optional
from layerzero.host import pickling as _pickling
from layerzero.host import pipelines as _pipelines
from layerzero.host.policy import policy_in_force, scope_of_context
from layerzero.inspection import coverage, doctor, explain, list_kernels, prepare, run, validate, which
from layerzero.inspection.report import SelectionReport
from layerzero.settings import configure, disabled, load_config, lock, policy, prefer, shadow, unlock
from layerzero.torch import attach as _attach
from layerzero.torch import random as _random
from layerzero.torch.slow_path import slow_call


class VersionInfo(NamedTuple):
    """Version of the package and the build that is running."""

    major: int
    minor: int
    patch: int
    build: str


TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the import: type checkers know the name
if TYPE_CHECKING:
    from layerzero import graphs as graphs
    from layerzero._operations import *  # noqa: F403
    from layerzero.backends.flashinfer.plans import read_tables as read_tables
    from layerzero.backends.inductor.recording import CompiledCall as CompiledCall
    from layerzero.backends.inductor.recording import compile_references as compile_references
    from layerzero.host.observe import observe as observe
    from layerzero.host.require import require as require
    from layerzero.inspection.health import health as health
    from layerzero.inspection.health import reset_health as reset_health
    from layerzero.inspection.metrics import metrics as metrics
    from layerzero.inspection.schemas import OperationSchema as OperationSchema
    from layerzero.inspection.schemas import TensorSchema as TensorSchema
    from layerzero.inspection.selection import KernelRegistry as KernelRegistry
    from layerzero.inspection.selection import SelectionContext as SelectionContext
    from layerzero.inspection.selection import SelectionContextBuilder as SelectionContextBuilder
    from layerzero.integrations.kernelizing import kernelize as kernelize
    from layerzero.integrations.kernelizing import unkernelize as unkernelize
    from layerzero.integrations.transformers.caches.paged_cache import PagedCache as PagedCache
    from layerzero.integrations.transformers.compiled import compile as compile
    from layerzero.integrations.transformers.compiled import dry_run as dry_run
    from layerzero.jit.readiness import ReadinessReport as ReadinessReport
    from layerzero.jit.readiness import readiness_check as readiness_check
    from layerzero.jit.warmup import WarmupReport as WarmupReport
    from layerzero.jit.warmup import warmup as warmup
    from layerzero.kv_cache import KVCacheManager as KVCacheManager
    from layerzero.packing import PackedWeights as PackedWeights
    from layerzero.positions import alibi_slopes as alibi_slopes
    from layerzero.tables import DispatchTable as DispatchTable
    from layerzero.tables import load_table as load_table
    from layerzero.tables import table_state as table_state
    from layerzero.tables import unload_table as unload_table
    from layerzero.tables.solve import solve as solve
    from layerzero.telemetry.profiling import Profile as Profile
    from layerzero.telemetry.profiling import profile as profile
    from layerzero.telemetry.recording import report as report
    from layerzero.telemetry.server import serve_metrics as serve_metrics
    from layerzero.telemetry.trace import trace as trace
    from layerzero.tokenizers import TokenCache as TokenCache
    from layerzero.tokenizers import TokenCacheWarning as TokenCacheWarning
    from layerzero.tokenizers import detokenize as detokenize
    from layerzero.tokenizers import register_tokenizer as register_tokenizer
    from layerzero.tokenizers import tokenize as tokenize
    from layerzero.tokenizers import tokenizer_arguments as tokenizer_arguments
    from layerzero.tokenizers import tokenizer_identity as tokenizer_identity
    from layerzero.tokenizers import tokenizer_kernels as tokenizer_kernels
    from layerzero.tokenizers import wrap_tokenizer as wrap_tokenizer
    from layerzero.tuning.session import tune as tune
    from layerzero.tuning.workload import record as record

__version__, _build = _layerzero.build_id()
_major, _minor, _patch = (int(part) for part in __version__.split(".")[:3])
version_info = VersionInfo(_major, _minor, _patch, _build)

_layerzero.set_hooks(
    errors.raise_engine_error,
    slow_call,
    backends.resolve,
    scope_of_context,
    _log.log_selection,
    _log.log_failure,
    _log.warn_guessed_layout,
    _random.draw,
    backends.proof.prove,
    backends.begin,
    _memory.free_bytes,
)
_layerzero.observe_jit_wanted(_compilation.wanted)
_operations = tuple(_layerzero.ops)
if _log.times_requested():
    from layerzero.host import verbose as _verbose

    _verbose.install()
globals().update(_layerzero.ops)  # the C callables themselves
_pickling.install(_layerzero.ops)
try:
    _layerzero.startup()
except LayerZeroError as _error:
    _or = " or load_config() reads another file" if isinstance(_error, ConfigError) else ""
    warnings.warn(f"{_error}. Every operation raises this error until it is corrected{_or}.", stacklevel=2)
_attach.install()
_end.install()

# Names whose modules are imported on first use, because they need more than torch.
_LAZY = {
    "CompiledCall": "layerzero.backends.inductor.recording",
    "DispatchTable": "layerzero.tables",
    "KVCacheManager": "layerzero.kv_cache",
    "KernelRegistry": "layerzero.inspection.selection",
    "OperationSchema": "layerzero.inspection.schemas",
    "PackedWeights": "layerzero.packing",
    "PagedCache": "layerzero.integrations.transformers",
    "Profile": "layerzero.telemetry.profiling",
    "SelectionContext": "layerzero.inspection.selection",
    "SelectionContextBuilder": "layerzero.inspection.selection",
    "TensorSchema": "layerzero.inspection.schemas",
    "alibi_slopes": "layerzero.positions",
    "detokenize": "layerzero.tokenizers",
    "graphs": "layerzero.graphs",
    "health": "layerzero.inspection.health",
    "require": "layerzero.host.require",
    "profile": "layerzero.telemetry.profiling",
    "report": "layerzero.telemetry.recording",
    "reset_health": "layerzero.inspection.health",
    "serve_metrics": "layerzero.telemetry.server",
    "trace": "layerzero.telemetry.trace",
    "compile": "layerzero.integrations.transformers",
    "compile_references": "layerzero.backends.inductor.recording",
    "dry_run": "layerzero.integrations.transformers",
    "load_table": "layerzero.tables",
    "solve": "layerzero.tables.solve",
    "table_state": "layerzero.tables",
    "kernelize": "layerzero.integrations.kernelizing",
    "metrics": "layerzero.inspection.metrics",
    "observe": "layerzero.host.observe",
    "read_tables": "layerzero.backends.flashinfer.plans",
    "ReadinessReport": "layerzero.jit.readiness",
    "WarmupReport": "layerzero.jit.warmup",
    "readiness_check": "layerzero.jit.readiness",
    "warmup": "layerzero.jit.warmup",
    "register_tokenizer": "layerzero.tokenizers",
    "tokenize": "layerzero.tokenizers",
    "record": "layerzero.tuning.workload",
    "tokenizer_arguments": "layerzero.tokenizers",
    "tokenizer_identity": "layerzero.tokenizers",
    "tokenizer_kernels": "layerzero.tokenizers",
    "wrap_tokenizer": "layerzero.tokenizers",
    "TokenCache": "layerzero.tokenizers",
    "TokenCacheWarning": "layerzero.tokenizers",
    "tune": "layerzero.tuning.session",
    "unkernelize": "layerzero.integrations.kernelizing",
    "unload_table": "layerzero.tables",
}


def _lazy(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'layerzero' has no attribute {name!r}")
    with _optional.needed_for(f"layerzero.{name}"):
        module = importlib.import_module(_LAZY[name])
        value = module if _LAZY[name] == f"layerzero.{name}" else getattr(module, name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # for type checkers the names above are complete
    __getattr__ = _lazy


__all__ = [
    "ConfigError",
    "ContextLostError",
    "CudaGraphUnsafeError",
    "FileError",
    "InternalError",
    "InvalidRequestError",
    "KVCacheFullError",
    "KernelExecutionError",
    "KernelRefusedError",
    "LayerZeroCompatibilityWarning",
    "LayerZeroError",
    "LayerZeroGraphMemoryWarning",
    "LayerZeroLayoutWarning",
    "LayerZeroReferenceWarning",
    "ModelStateError",
    "NoKernelFoundError",
    "NotInstalledError",
    "OutOfMemoryError",
    "Reason",
    "RequirementError",
    "SelectionReport",
    "UnknownNameError",
    "UntrustedFileError",
    "VersionInfo",
    "ReleasedWeightError",
    "VersionMismatchError",
    "WorkerError",
    "WrongTypeError",
    "__version__",
    "configure",
    "coverage",
    "disabled",
    "doctor",
    "explain",
    "list_kernels",
    "load_config",
    "lock",
    "policy",
    "policy_in_force",
    "prefer",
    "prepare",
    "register_kernel",
    "run",
    "shadow",
    "unlock",
    "unregister_kernel",
    "validate",
    "version_info",
    "which",
]
__all__ += _operations
__all__ += _LAZY


def __dir__() -> list[str]:
    return sorted(__all__)


_exports.apply_at_import()  # last: what they start may use every name above
_measuring.apply_at_import()
_pipelines.apply_at_import()
