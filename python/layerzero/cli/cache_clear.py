"""layerzero cache clear."""

from typing import Annotated

import typer

from layerzero.cli import cache_cap
from layerzero.cli._output import Json


def command(
    compiled: Annotated[
        bool, typer.Option("--compiled", help="only compiled kernels, and the records of failed compilations")
    ] = False,
    json: Json = False,
) -> None:
    """Removes everything that LayerZero keeps on disk.

    These are converted models, packed weights, findings of kernelize and compiled kernels; the next use makes them
    again.
    """
    if compiled:
        from layerzero.jit import store

        cache_cap.show(store.cap(0), json)
    else:
        cache_cap.command("0", json)
