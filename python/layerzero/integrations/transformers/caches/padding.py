"""Reads the masks of a call: left padding of a batch's rows, and keys that a window hides."""

from typing import Any

import torch

OTHER_MASK = "the mask hides more than padding at the left of a row, or other padding than when its cache was written"


def left_padding(mask: torch.Tensor) -> list[int] | None:
    """Zeros at the left of each row, or None where some are elsewhere."""
    visible = mask.bool()
    pads = (~visible).sum(-1)
    expected = torch.arange(mask.shape[-1], device=mask.device) >= pads[:, None]
    return pads.tolist() if torch.equal(visible, expected) else None


def shows(mask: Any, absent: list[int]) -> bool:
    """Whether a mask shows the last row, which is no padding, one of the first `absent` positions."""
    if mask is None:
        return True
    if mask.dim() == 2:
        seen = mask.bool()
    else:
        seen = mask[:, 0, -1]
        seen = seen > torch.finfo(seen.dtype).min if seen.is_floating_point() else seen.bool()
    columns = torch.arange(seen.shape[-1], device=seen.device)
    return bool((seen & (columns < torch.tensor(absent, device=seen.device)[:, None])).any())


def shows_beyond(mask: torch.Tensor, past: int, length: int, window: int) -> bool:
    """Whether a mask (batch, 1, 1 or length, keys) shows one of the rows after `past` what a causal window hides."""
    if length == 1 and past < window:  # a token whose window has everything before it
        return False
    lowest = torch.finfo(mask.dtype).min if mask.is_floating_point() else 0
    row, key = torch.arange(past, past + length)[:, None], torch.arange(mask.shape[-1])
    return bool(((mask > lowest) & ((key > row) | (key <= row - window))).any())


def padding_of(
    mask: Any, window: int | None, batch: int, past: int, length: int, absent: list[int]
) -> list[int] | None:
    """The left padding of each row by one mask, or None if the mask hides other keys. absent: the padding of earlier positions."""
    if mask is None:
        return [0] * batch
    if mask.dim() == 2:
        return left_padding(mask[:, : past + length])
    if mask.dtype != torch.bool or mask.shape[-2:] != (length, past + length):
        return None
    visible = mask[:, 0].expand(batch, -1, -1)
    itself = visible.diagonal(past, dim1=1, dim2=2)  # a row that is no padding sees itself
    further = (~itself).sum(-1).tolist()
    found = [known + more if known == past else known for known, more in zip(absent, further, strict=True)]
    row, key = torch.arange(past, past + length)[:, None], torch.arange(past + length)
    seen = (key <= row) & (key > row - (window or past + length))
    pads = torch.tensor(found)[:, None, None]
    agrees = (visible == (seen & (key >= pads))) | (row < pads)
    return found if bool(agrees.all()) else None
