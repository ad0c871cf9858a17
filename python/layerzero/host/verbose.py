"""LAYERZERO_VERBOSE=2: a line with kernel, time and tensors of each kernel that runs, whatever calls it.

For debugging only: each call waits for its CUDA stream.
"""

from layerzero import _layerzero
from layerzero.host import log, watching


def install() -> None:
    """Observes every kernel from here on."""
    watching.watch(_layerzero.observe(_emit, True))


def _emit(
    operation: str,
    kernel_id: str,
    device: str,
    inputs: str,
    seconds: float,
    fallback: bool,
    error: str | None,
    missed: bool,
) -> None:
    failed = "" if error is None else f", failed: {error}"
    log.line(f"{operation}: {kernel_id} {seconds * 1e6:.1f} us, {inputs}{failed}")
