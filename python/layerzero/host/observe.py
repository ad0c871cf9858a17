"""`lz.observe`: a callback after each kernel that runs."""

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from layerzero import _layerzero
from layerzero.errors import WrongTypeError
from layerzero.host import blocks, watching


class KernelRun(NamedTuple):
    """One run of one kernel.

    seconds: host time of the run; with `wait`, the time until its CUDA work was done. error: None, or why it failed.
    """

    operation: str  # "rms_norm"
    kernel_id: str
    device: str  # "cpu", "cuda:0"
    inputs: str  # "float32[4,8] float32[8]"
    seconds: float
    fallback: bool  # another kernel of this call failed before
    error: str | None
    selected: bool = False  # no cache had a plan for this call: its kernel was selected for it


class observe:
    """Calls `callback(run)` after each kernel that runs while the `with` block is open, on the thread that ran it.

    with lz.observe(lambda run: print(run.kernel_id, run.seconds)): model(x)

    Native and Python kernels, fallbacks, `torch.ops.layerzero`, compiled graphs and programs are all reported, of every
    thread; kernels inside a captured CUDA graph are reported at the capture alone. With `wait`, each call waits for its
    CUDA stream before and after the kernel: `seconds` is the kernel's time, and an error of the device is raised by the
    call whose kernel made it. An exception in the callback goes to `sys.unraisablehook` and changes no call. While nothing
    is observed, this costs a call one load from memory.
    """

    def __init__(self, callback: Callable[[KernelRun], object], *, wait: bool = False) -> None:
        self._callback, self._wait, self._handles = callback, wait, list[int]()

    def __enter__(self) -> "observe":
        callback = self._callback
        if not callable(callback):
            raise WrongTypeError("callback", "a function of one KernelRun", repr(callback))
        handle = _layerzero.observe(lambda *run: callback(KernelRun(*run)), self._wait)
        self._handles.append(watching.watch(handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._handles:
            raise blocks.not_entered("observe")
        watching.stop(self._handles.pop())
