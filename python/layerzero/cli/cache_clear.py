"""layerzero cache clear."""

from layerzero.cli import cache_cap
from layerzero.cli._output import Json


def command(json: Json = False) -> None:
    """Removes every converted model, all packed weights and all findings of kernelize; the next use recreates them."""
    cache_cap.command("0", json)
