"""layerzero cache cap."""

from typing import Annotated

import typer

from layerzero.cli._output import Json, print_json, read_size, size_text


def command(size: Annotated[str, typer.Argument(help="bytes, or 500MiB, 2GiB")], json: Json = False) -> None:
    """Removes converted models and packed weights, the least recently used first, until the rest fits into SIZE."""
    from layerzero.models import disk_cache

    removed = disk_cache.cap(read_size(size))
    freed = sum(entry["bytes"] for entry in removed)
    if json:
        print_json({"removed": removed, "freed_bytes": freed})
    else:
        print(f"removed {len(removed)}, {size_text(freed)}")
