"""The queue of what is to be compiled, and the one thread of the process that compiles it.

A call never waits here: it appends, or it is not even asked (`library.wanted`). The queue has a limit; what waited longest
is dropped for what is new, and counted.
"""

import collections
import os
import threading
import time
from typing import Any, NamedTuple, Protocol

from layerzero.host.policy import jit_settings

LONGEST_ERROR = 600  # characters
DONE = ("ready", "failed", "skipped", "dropped")


class Work(Protocol):
    """Something to compile. state: "waiting", "compiling", or one of DONE."""

    state: str
    detail: str
    seconds: float

    def compile(self) -> None:
        """Compiles it and makes it known to the engine, on the queue's thread; an exception is a failure."""


class Counts(NamedTuple):
    """What has become of everything that was queued by this process."""

    waiting: int
    compiling: int
    ready: int
    failed: int
    dropped: int
    from_cache: int  # of the ready ones: whose code was on disk
    seconds: float  # spent on all of them


class _Queue:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: collections.deque[Any] = collections.deque()
        self.thread: threading.Thread | None = None
        self.compiling = self.ready = self.failed = self.dropped = self.from_cache = 0
        self.seconds = 0.0
        self.captures = 0  # of CUDA graphs that are open: nothing is compiled meanwhile


_queue = _Queue()


def _new_queue() -> None:
    global _queue
    _queue = _Queue()  # a forked child has neither the thread nor what it was doing


os.register_at_fork(after_in_child=_new_queue)


def add(works: list[Any]) -> None:
    """Queues what is in the state "waiting". Beyond jit.compile_queue_max_size the oldest are dropped."""
    queue, most = _queue, jit_settings().compile_queue_max_size
    with queue.changed:
        for work in works:
            if work.state != "waiting":
                continue
            if len(queue.waiting) >= most:
                queue.dropped += 1
                _settle(queue, queue.waiting.popleft(), "dropped", f"more than {most} calls were waiting")
            queue.waiting.append(work)
        if queue.waiting and (queue.thread is None or not queue.thread.is_alive()):
            queue.thread = threading.Thread(target=_run, args=(queue,), name="layerzero compiler", daemon=True)
            queue.thread.start()


def wait(work: Any, until: float | None) -> None:
    """Waits until the work is done, at the latest at `until` of time.monotonic()."""
    queue = _queue
    with queue.changed:
        while work.state not in DONE:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            queue.changed.wait(left)


def idle(until: float | None) -> bool:
    """Waits until nothing is left to do; returns False if that is not so at `until` of time.monotonic()."""
    queue = _queue
    with queue.changed:
        while queue.waiting or queue.compiling:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            queue.changed.wait(left)
    return True


def counts() -> Counts:
    queue = _queue
    with queue.changed:
        own = (len(queue.waiting), queue.compiling, queue.ready, queue.failed, queue.dropped, queue.from_cache)
        return Counts(*own, queue.seconds)


def found_on_disk() -> None:
    """Counts, on the queue's thread, that the present work needed no compilation."""
    with _queue.changed:
        _queue.from_cache += 1


def pause() -> None:
    """Has the thread begin nothing until resume(): a CUDA graph is captured, and what compilers do would end it. Waits
    for what is being compiled."""
    queue = _queue
    with queue.changed:
        queue.captures += 1
        while queue.compiling and queue.thread is not threading.current_thread():
            queue.changed.wait()


def resume() -> None:
    with _queue.changed:
        _queue.captures -= 1
        _queue.changed.notify_all()


def on_compiler_thread() -> bool:
    return _queue.thread is threading.current_thread()


def _settle(queue: _Queue, work: Any, state: str, detail: str = "") -> None:
    with queue.changed:
        work.state, work.detail = state, detail
        queue.changed.notify_all()


def _run(queue: _Queue) -> None:
    """The thread. Ends when nothing is waiting."""
    while True:
        with queue.changed:
            while queue.captures:
                queue.changed.wait()
            if not queue.waiting:
                queue.thread = None
                return
            work = queue.waiting.popleft()
            queue.compiling = 1
        _settle(queue, work, "compiling")
        begin = time.perf_counter()
        try:
            work.compile()
            state, detail = "ready", ""
        except BaseException as error:  # a compiler's errors are of any class
            state, detail = "failed", text_of(error)
        work.seconds = time.perf_counter() - begin
        with queue.changed:
            queue.compiling = 0
            queue.seconds += work.seconds
            queue.ready += state == "ready"
            queue.failed += state == "failed"
            _settle(queue, work, state, detail)


def text_of(error: BaseException) -> str:
    text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 3] + "..."
