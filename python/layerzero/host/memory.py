"""The memory that a GPU's allocator can provide."""

import sys
from typing import Any


def free_bytes(ordinal: int) -> int:
    """The binding's `free` hook: bytes that one allocation on a CUDA device can have; -1 where torch does not use it.

    What the driver has, and what torch's allocator keeps in blocks that it returns to the driver before it fails.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return -1
    free, _ = cuda.mem_get_info(ordinal)
    stats = cuda.memory_stats_as_nested_dict(ordinal)
    kept = stats["reserved_bytes"]["all"]["current"] - stats["active_bytes"]["all"]["current"]
    split = stats["inactive_split_bytes"]["all"]["current"]  # parts of blocks that are in use: not returned
    return int(free + max(0, kept - split))
