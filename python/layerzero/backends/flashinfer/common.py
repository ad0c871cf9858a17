"""Shared code of FlashInfer's adapters, and the probe of all its kernels."""

import math

import torch

LOG2E = math.log2(math.e)
LN2 = math.log(2)


def left_of(window: int | None) -> int:
    """Converts `window` keys, the row's own position included, to the number of keys before it; -1: all."""
    return -1 if window is None or window < 0 else window - 1


def probe() -> None:
    """Checks a known result of FlashInfer's smallest kernel. Its first build on a machine takes half a minute."""
    import flashinfer

    gate = torch.zeros(2, 64, dtype=torch.float16, device="cuda")
    gate[:, 32:] = 3
    found = flashinfer.silu_and_mul(gate + 1)
    wanted = 4 * torch.nn.functional.silu(torch.ones((), device="cuda"))
    if not torch.allclose(found.float(), wanted, rtol=1e-2):
        raise RuntimeError(
            f"flashinfer.silu_and_mul of 1 and 4: wanted {wanted.item():.4f}, got {found[0, 0].item():.4f}"
        )
