"""What sees calls of operations at this moment. Code that goes round an operation, because torch's own function would answer, makes
the call through the operation while there is anything."""

from layerzero import _layerzero

watchers: set[int | str] = set()
_SERVED = "served calls"


def watch(handle: int) -> int:
    """Notes an observer of the engine, by the handle that the binding returned; returns the handle."""
    watchers.add(handle)
    return handle


def stop(handle: int) -> None:
    """Ends an observer that `watch` noted."""
    watchers.discard(handle)
    _layerzero.stop_observing(handle)


def record_served_calls(on: bool) -> None:
    """Makes the engine record the calls of this process, from none, or stop."""
    _layerzero.record_served_calls(on)
    if on:
        watchers.add(_SERVED)
    else:
        watchers.discard(_SERVED)
