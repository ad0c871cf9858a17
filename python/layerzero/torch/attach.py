"""Attaches the binding to torch: now if torch is imported, else after its import or at a first call that needs it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from layerzero import _layerzero
from layerzero.host import forks
from layerzero.host.import_hook import after_import

if TYPE_CHECKING:
    from types import ModuleType

_guard = forks.lock()
_attached: ModuleType | None = None


def attached() -> bool:
    return _attached is not None


def attach_if_imported() -> bool:
    """Returns True if torch is imported and attached. A torch that is still being imported is left alone."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False):
        return False
    attach(torch)
    return True


def attach(torch: ModuleType) -> None:
    """Enables the fast path for torch's tensors and registers torch's kernels and operators."""
    global _attached
    with _guard:
        if _attached is torch:
            return
        _layerzero.attach(torch, _calibrate(torch), _negatives(torch))
        _attached = torch
        from layerzero import backends

        backends.torch_attached()
        from layerzero.torch import operators

        operators.register()


def _calibrate(torch: Any) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Returns c10's thread-local {included, excluded} dispatch keys in normal and in inference mode.

    None if the symbol is missing or the values do not behave as expected: the binding then calls torch's own functions.
    """
    plain = _layerzero.dispatch_key_state()
    if plain is None:
        return None
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[tuple[int, int] | None] = []

    def note(x):
        seen.append(_layerzero.dispatch_key_state())
        return x

    with torch.inference_mode():
        inference = _layerzero.dispatch_key_state()
    with TorchDispatchMode():
        seen.append(_layerzero.dispatch_key_state())
    torch.func.vmap(note)(torch.ones(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen.append(_layerzero.dispatch_key_state())
    restored = _layerzero.dispatch_key_state() == plain
    shown = len(set(seen)) == len(seen) and not set(seen) & {plain, inference}
    return (plain, inference) if inference is not None and restored and shown else None


def _negatives(torch: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Returns varied tensors without and with torch's negative bit, in which the binding locates the bit."""
    base = torch.zeros(4, 6)
    plain = (base, base[1:], base.t(), torch.zeros(3), torch.zeros(2, 1, 5))
    return plain, tuple(torch._neg_view(tensor) for tensor in (*plain[1:], plain[-1]))


def install() -> None:
    """Attaches now or after `import torch`; called once by `import layerzero`."""
    if not attach_if_imported() and "torch" not in sys.modules:
        after_import("torch", attach)  # an error is only logged: the first call attaches again and raises it
