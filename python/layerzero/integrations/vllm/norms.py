"""RMSNorm as a provider of vLLM's own operations `rms_norm` and `fused_add_rms_norm` (vllm.ir), under the name layerzero.

vLLM's option chooses it (--ir-op-priority.rms_norm=layerzero), or LayerZero's `ops`, which puts it first there.
"""

import functools
from typing import Any

import torch
from torch import Tensor
from vllm import ir
from vllm.config.kernel import KernelConfig

from layerzero.integrations.vllm.options import ops_of
from layerzero.torch import attach

PROVIDER = "layerzero"
NAMES = ("rms_norm", "fused_add_rms_norm")


def _any_width(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    return variance_size is None


def _added_any_width(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    return variance_size is None


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return torch.ops.layerzero.rms_norm(x, weight, epsilon)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    return torch.ops.layerzero.fused_add_rms_norm(x, x_residual, weight, epsilon)


def register() -> None:
    """Registers both implementations, once, and lets an engine's `ops` put them first."""
    attach.attach_if_imported()  # torch.ops.layerzero
    if PROVIDER in ir.ops.rms_norm.impls:
        return
    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=_any_width)(rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=_added_any_width)(fused_add_rms_norm)
    defaults = KernelConfig.set_platform_defaults

    @functools.wraps(defaults)
    def set_platform_defaults(self: Any, vllm_config: Any) -> Any:
        for name in ops_of(vllm_config).intersection(NAMES):
            priority = getattr(self.ir_op_priority, name)
            if PROVIDER not in priority:
                priority.insert(0, PROVIDER)
        return defaults(self, vllm_config)

    KernelConfig.set_platform_defaults = set_platform_defaults
