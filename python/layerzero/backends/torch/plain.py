"""Operations whose torch reference is already efficient: a few views, one copy."""

from collections.abc import Callable
from typing import Any

from layerzero.contracts import contracts
from layerzero.torch.references import host_kernel


def __getattr__(name: str) -> Callable[..., Any]:
    if name in contracts():
        return host_kernel(name)
    raise AttributeError(name)
