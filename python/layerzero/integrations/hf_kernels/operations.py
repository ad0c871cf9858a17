"""What the layers call. A published kernel has another file of this name, over its own library."""

from layerzero import activation, gated_activation, rms_norm, rope, silu_and_mul

__all__ = ["activation", "gated_activation", "rms_norm", "rope", "silu_and_mul"]
