"""Backends of other distributions: entry points of the group `layerzero.backends`.

Each names a file of its package ("package.kernels:capabilities.json"), which is found without importing the package, or a
callable without parameters. That returns a descriptor (a dict, or the path of its JSON file), or nothing when it
registered its kernels itself by `layerzero.register_kernel`; its package is imported before the first selection, unless
the policy's `allow_sources` names neither the entry point nor the package, or the policy requires signatures.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from layerzero.backends import signatures
from layerzero.backends.signatures import Outside

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUP = "layerzero.backends"


@functools.cache  # every distribution's files are read for it
def _points() -> "EntryPoints":
    from importlib.metadata import entry_points  # which takes longer than the rest of this module

    return entry_points(group=GROUP)


def in_files() -> Iterator[tuple[str, Callable[[], Outside]]]:
    """Yields name and descriptor of each entry point that is a file."""
    for point in _points():
        if point.attr.endswith(".json"):
            yield point.name, functools.partial(_read, point)


class CodePoint(NamedTuple):
    """An entry point that has to be called."""

    name: str
    module: str

    @property
    def names(self) -> tuple[str, str]:
        """Returns the names of its library that a policy may use before the import: entry point and package."""
        return self.name, self.module.partition(".")[0]


def in_code() -> Iterator[tuple[CodePoint, Callable[[], Outside | None]]]:
    """Yields each entry point that has to be called, and the call, which returns a descriptor or None."""
    for point in _points():
        if not point.attr.endswith(".json"):
            yield CodePoint(point.name, point.module), functools.partial(signatures.call, point.name, point.load)


def _read(point: "EntryPoint") -> Outside:
    package, *folders = point.module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"{point.value}: package {package} is not installed")
    return signatures.read(Path(spec.submodule_search_locations[0]).joinpath(*folders, point.attr))
