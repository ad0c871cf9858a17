"""What the probes of libraries share: calls whose results are known, on the device."""

from collections.abc import Callable

import torch


def check_rms_norm(rms_norm: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """Raises where the adapter does not normalise a row of 3 and 4, whose mean square is 12.5."""
    x = torch.tensor([[3.0, 4.0] * 32], device="cuda", dtype=dtype)
    got = rms_norm(x, torch.full((64,), 2.0, device="cuda", dtype=dtype), 0.0).float()
    want = x.float() * (2.0 / 12.5**0.5)
    if not torch.allclose(got, want, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=0):
        raise RuntimeError(f"rms_norm: wanted {want[0, :2].tolist()}, got {got[0, :2].tolist()}")
