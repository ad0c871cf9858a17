"""Backends of other distributions: entry points of the group `layerzero.backends`.

Each names a callable without parameters. It returns a descriptor (a dict, or the path of its JSON file), or nothing when
it registered its kernels itself by `layerzero.register_kernel`.
"""

import functools
import json
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "layerzero.backends"


def backends_of_entry_points() -> Iterator[tuple[str, Callable[[], None]]]:
    for point in entry_points(group=GROUP):
        yield point.name, functools.partial(_load, point)


def _load(point: EntryPoint) -> None:
    from layerzero import backends

    descriptor = point.load()()
    if descriptor is None:
        return
    if not isinstance(descriptor, dict):
        descriptor = json.loads(Path(descriptor).read_text())
    backends.register({**descriptor, "plugin_origin": "entry_point"})
