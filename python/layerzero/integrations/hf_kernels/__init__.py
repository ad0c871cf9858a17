"""The library `kernels` (Hugging Face), both ways: its kernels as kernels of operations, and LayerZero's layers in its mapping."""

from layerzero.integrations.hf_kernels.mapping import kernel_config, mapping, write_local_kernel
from layerzero.integrations.hf_kernels.source import Origin, digest_of, hub_kernel, mapped_layer, run_layer

__all__ = [
    "Origin",
    "digest_of",
    "hub_kernel",
    "kernel_config",
    "mapped_layer",
    "mapping",
    "run_layer",
    "write_local_kernel",
]
