"""layerzero cache clear."""

from layerzero.cli import cache_cap
from layerzero.cli._output import Json


def command(json: Json = False) -> None:
    """Removes every converted model and all packed weights; the next load makes it again."""
    cache_cap.command("0", json)
