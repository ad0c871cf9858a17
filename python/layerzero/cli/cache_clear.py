"""layerzero cache clear."""

from layerzero.cli import cache_cap
from layerzero.cli._output import Json


def command(json: Json = False) -> None:
    """Removes every converted model, all packed weights and all findings of kernelize; the next use makes them again."""
    cache_cap.command("0", json)
