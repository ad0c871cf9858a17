"""layerzero cache clear."""

from typing import Annotated

import typer

from layerzero.cli import cache_cap
from layerzero.cli._output import Json


def command(
    compiled: Annotated[
        bool, typer.Option("--compiled", help="only compiled kernels, and what is known of compilations that failed")
    ] = False,
    json: Json = False,
) -> None:
    """Removes every converted model, all packed weights, all findings of kernelize and all compiled kernels; the next use recreates them."""
    if compiled:
        from layerzero.jit import store

        cache_cap.show(store.cap(0), json)
    else:
        cache_cap.command("0", json)
