"""Keeps huggingface_hub from the network while local files are read."""

import contextlib
from collections.abc import Iterator

from layerzero.host import forks

_one_at_a_time = forks.lock()  # the flag is the process's


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Prevents requests of huggingface_hub in the block, whatever the environment says."""
    from huggingface_hub import constants

    with _one_at_a_time:
        before = constants.HF_HUB_OFFLINE
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before
