"""A time limit for Python code that may never end, such as a model's chat template."""

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Stopped(BaseException):
    """Raised inside code that took too long."""


def within(seconds: float, function: Callable[[], T]) -> T:
    """Returns the function's result, or raises TimeoutError after `seconds`. The function runs in a separate thread,
    which is then stopped at its next Python instruction."""
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stopped))
        thread.join(1.0)
        raise TimeoutError(f"not done after {seconds:g} s")
    if failure:
        raise failure[0]
    return result[0]
