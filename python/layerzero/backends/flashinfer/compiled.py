"""FlashInfer's compiled functions without the Python around them, which costs the host 3 to 12 us a call (docs/design/0022).

Its modules export functions for tvm-ffi, which say nothing of their arguments: these were read in the sources of the releases
READ_IN. For another release `compiled` returns None, and adapters call the library's public function; so they do where the
user has FlashInfer log or trace its calls, and for a norm that it computes by its kernels in the CuTe DSL on this device.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

READ_IN = ("0.6.13", "0.7.2", "0.7.2.post1")
NORMS = ("rmsnorm", "fused_add_rmsnorm", "layernorm")
MERGES = ("merge_state", "merge_states")
_WITHOUT_EARLY_START = ("layernorm", *MERGES)  # others have as last argument whether they may be launched early
_WATCHED = ("FLASHINFER_LOGLEVEL", "FLASHINFER_TRACE_DUMP")
_found: dict[tuple[str, int], Callable[..., Any] | None] = {}


def compiled(function: str, tensor: torch.Tensor) -> Callable[..., Any] | None:
    """Returns the module's function for the device of a tensor, None if it must not be called. It is looked up once, at the
    kernel's first call, in which the library compiles the module. The caller has checked shapes, dtypes and devices."""
    key = (function, tensor.get_device())
    if key not in _found:
        _found[key] = _function(function, tensor.device)
    return _found[key]


def _function(name: str, device: torch.device) -> Callable[..., Any] | None:
    import flashinfer

    if getattr(flashinfer, "__version__", "") not in READ_IN or any(os.environ.get(v, "0") != "0" for v in _WATCHED):
        return None
    if name in NORMS and not _in_cpp(flashinfer.norm, device):
        return None
    function = getattr(_module(name), name)
    if name in _WITHOUT_EARLY_START:
        return function
    early = flashinfer.utils.device_support_pdl(device)
    return lambda *given: function(*given, early)


def _in_cpp(norm: Any, device: torch.device) -> bool:
    """Whether FlashInfer takes its norms in C++ here; else those in the CuTe DSL, if that is installed and knows the device."""
    asked = getattr(norm, "_use_cuda_norm", None)  # from 0.7 on
    return bool(asked(device) if asked is not None else norm._USE_CUDA_NORM)


@functools.cache
def _module(name: str) -> Any:
    import flashinfer

    if name in NORMS:
        return flashinfer.norm.get_norm_module()
    if name in MERGES:
        return flashinfer.cascade.get_cascade_module()
    return flashinfer.activation.gen_act_and_mul_module(name.removesuffix("_and_mul")).build_and_load()
