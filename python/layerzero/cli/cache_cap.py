"""layerzero cache cap."""

from typing import Annotated, Any

import typer

from layerzero.cli._output import Json, print_json, read_size, size_text


def command(
    size: Annotated[str, typer.Argument(help="a number of bytes, or a size such as 500MiB or 2GiB")], json: Json = False
) -> None:
    """Removes the least recently used files on disk.

    Converted models, packed weights and compiled kernels are removed until the rest fits into SIZE.
    """
    from layerzero.jit import store
    from layerzero.models import disk_cache

    removed = disk_cache.cap(read_size(size))
    rest = read_size(size) - sum(entry["bytes"] for entry in disk_cache.entries())
    show(removed + store.cap(max(0, rest)), json)


def show(removed: list[dict[str, Any]], json: bool) -> None:
    freed = sum(entry["bytes"] for entry in removed)
    if json:
        print_json({"removed": removed, "freed_bytes": freed})
    else:
        print(f"removed {len(removed)}, {size_text(freed)}")
