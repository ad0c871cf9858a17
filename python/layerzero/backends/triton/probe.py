"""Tests Triton on the device: its compiler and the programs that it calls."""

import torch

from layerzero.backends.probing import check_rms_norm
from layerzero.backends.triton.norms import rms_norm


def probe() -> None:
    check_rms_norm(rms_norm, torch.float32)
