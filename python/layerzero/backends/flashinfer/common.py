"""What the adapters of FlashInfer share, and the probe that all its rows wait for."""

import math

import torch

LOG2E = math.log2(math.e)
LN2 = math.log(2)


def left_of(window: int | None) -> int:
    """`window` keys, the row's own position included, as the keys before it; -1: all."""
    return -1 if window is None or window < 0 else window - 1


def probe() -> None:
    """FlashInfer imports and its smallest kernel gives known numbers. Its first build on a machine takes half a minute."""
    import flashinfer

    gate = torch.zeros(2, 64, dtype=torch.float16, device="cuda")
    gate[:, 32:] = 3
    found = flashinfer.silu_and_mul(gate + 1)
    wanted = 4 * torch.nn.functional.silu(torch.ones((), device="cuda"))
    if not torch.allclose(found.float(), wanted, rtol=1e-2):
        raise RuntimeError(
            f"flashinfer.silu_and_mul of 1 and 4: wanted {wanted.item():.4f}, got {found[0, 0].item():.4f}"
        )
