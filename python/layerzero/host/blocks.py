"""Errors of `with` blocks that are used in another order than Python's `with` does."""

from layerzero.errors import InvalidRequestError


def not_entered(name: str) -> InvalidRequestError:
    """Returns the error of a block that is left where it was not entered."""
    return InvalidRequestError(
        name,
        "a block that is open",
        "one that is not",
        f"write `with lz.{name}(...):`, or enter it before it is left",
    )


def entered_twice(name: str) -> InvalidRequestError:
    """Returns the error of a block that is entered again while it is open."""
    return InvalidRequestError(
        name,
        "a block that is not open",
        "one that is",
        f"make a second one with lz.{name}(...), or leave this one first",
    )
