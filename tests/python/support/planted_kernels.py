"""Kernels of norm.rms for tests of tuning, registered at import as a program does: PLANT in the environment says which."""

import os
import time

import layerzero as lz
import torch


def right(input, weight, eps):
    wide = input.double()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight).to(input.dtype)


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _slow(extra):
    def kernel(input, weight, eps):
        _spin(2e-3 * extra)
        return right(input, weight, eps)

    return kernel


def _crash(input, weight, eps):
    os.abort()


def _hang(input, weight, eps):
    time.sleep(3600)


def _wrong(input, weight, eps):
    return right(input, weight, eps) * 1.1


def _hungry(input, weight, eps):
    raise MemoryError("out of memory")


KERNELS = {
    "slow": _slow(1.0),
    "twin": _slow(1.0),
    "slower": _slow(1.03),
    "fast": _slow(0.02),
    "crash": _crash,
    "hang": _hang,
    "wrong": _wrong,
    "hungry": _hungry,
}


def plant(*names, priority=90):
    """Registers kernels as "planted.<name>"; the first has the highest priority."""
    for number, name in enumerate(names):
        lz.register_kernel(
            "norm.rms",
            f"planted.{name}",
            supported_dtypes=[torch.float32],
            platform="cpu",
            priority=priority - number,
            source="planted",
            version="1",
        )(KERNELS[name])


def unplant(*names):
    for name in names:
        lz.unregister_kernel("norm.rms", f"planted.{name}")


if names := os.environ.get("PLANT"):
    plant(*names.split(","))
