"""Locations of the keys of sequences in a paged cache, as index tensors on its device; no length is read on the host.

Invalid index data on CUDA is not refused: page numbers, offsets and lengths are clamped to the tensors' bounds, so
nothing outside them is read. On the CPU, where reading is free, the call is refused.
"""

from typing import NamedTuple

import torch

from layerzero.backends.torch.common import counting
from layerzero.errors import KernelExecutionError


class Entries(NamedTuple):
    """Sequence s has the entries [begin[s], end[s]) relative to first[s] in the list of all entries.

    Listed entry t is slot t % size of page pages[t // size]. In int64, on the cache's device.
    """

    pages: torch.Tensor  # (n) int32 page numbers, not clamped
    first: torch.Tensor  # (b)
    begin: torch.Tensor | None  # (b); None: 0
    end: torch.Tensor  # (b)
    size: int  # entries per page
    longest: int  # maximum entries of a sequence
    name: str  # name of the parameter with the page numbers


def window_of(window_left):
    """The number of keys of a window, the row's own included, or None: window_left is one less, -1 without a window."""
    return None if window_left < 0 else window_left + 1


def refuse_offsets(operation, name, offsets, limit):
    """On the CPU, refuses offsets that do not start at 0, that decrease or that exceed `limit`."""
    if offsets.device.type != "cpu" or not offsets.numel():
        return
    values = offsets.tolist()
    if values[0] != 0 or values != sorted(values) or values[-1] > limit:
        raise KernelExecutionError(
            f"{operation}: {name}", f"offsets from 0, never decreasing, up to {limit}", str(values)
        )


def csr(operation, indptr, indices, last_page_len, size):
    """Returns the sequences of a page list in CSR form."""
    refuse_offsets(operation, "kv_indptr", indptr, indices.shape[0])
    first = indptr.long().clamp_(0, indices.shape[0]).mul_(size)
    used = first.diff() > 0 if indptr.device.type == "cpu" else None
    if used is not None and bool((used & ((last_page_len < 0) | (last_page_len > size))).any()):
        raise KernelExecutionError(f"{operation}: kv_last_page_len", f"0 to {size}", str(last_page_len.tolist()))
    end = (last_page_len - size).clamp_(max=0).add(first[1:]).sub_(first[:-1]).clamp_(min=0)
    return Entries(indices, first[:-1], None, end, size, indices.shape[0] * size, "kv_indices")


def block_table(operation, tables, lengths, size):
    """Returns the sequences of a padded block table."""
    most = tables.shape[1] * size
    if lengths.device.type == "cpu" and bool(((lengths < 0) | (lengths > most)).any()):
        raise KernelExecutionError(f"{operation}: context_lens", f"0 to {most}", str(lengths.tolist()))
    end = lengths.long().clamp(0, most)
    first = torch.arange(0, tables.numel() * size, max(most, 1), device=tables.device)
    return Entries(tables.flatten(), first, None, end, size, most, "block_tables")


def windowed(entries, window, queries=1):
    """Drops entries that the last `queries` rows of each sequence do not see; the window includes the own position."""
    if window is None:
        return entries
    seen = window + queries - 1
    return entries._replace(begin=(entries.end - seen).clamp(min=0), longest=min(entries.longest, seen))


class Blocks(NamedTuple):
    """The entries of all sequences in blocks of equal length; the blocks of a sequence are adjacent."""

    sequence: torch.Tensor | None  # (blocks) sequence of each block; None: each sequence is one block
    row: torch.Tensor  # (blocks, length) index of each entry in the cache, page * size + slot; hidden: of a seen entry
    before: torch.Tensor  # (blocks, length) distance to the end of its sequence; the last entry: 1
    hidden: torch.Tensor  # (blocks, length) bool: True where the block has no entry of its sequence
    ends: torch.Tensor | None  # (b + 1) first block of each sequence, then the end; None: one block each

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the rows of a tensor (b, ...) that belong to the blocks' sequences."""
        return _rows(tensor, self.sequence)


def _rows(tensor: torch.Tensor, sequence: torch.Tensor | None) -> torch.Tensor:
    return tensor if sequence is None else tensor.index_select(0, sequence)


def block_length(entries):
    """Returns a power of two, an eighth of the mean number of listed entries: few blocks are then partly empty."""
    mean = entries.pages.shape[0] * entries.size // max(entries.first.shape[0], 1)
    return 1 << min(max((mean // 8).bit_length() - 1, 4), 9)


def blocks(operation, entries, page_count):
    """Returns the maximum number of blocks that the sequences could need, which shapes alone determine."""
    batch, listed, size = entries.first.shape[0], entries.pages.shape[0], entries.size
    length, device = block_length(entries), entries.pages.device
    first, stop = entries.first, entries.first + entries.end
    first = first if entries.begin is None else first + entries.begin
    sequence = ends = None
    if batch * entries.longest <= listed * size + batch * length:  # padding to the longest sequence costs no more
        length = entries.longest
    else:
        count = listed * size // length + batch
        needed = (entries.end if entries.begin is None else entries.end - entries.begin) + (length - 1)
        needed.floor_divide_(length)
        ends = torch.nn.functional.pad(needed.cumsum(0), (1, 0)).clamp_(max=count)
        number = counting(count, device)
        sequence = torch.searchsorted(ends[1:], number, right=True).clamp_(max=batch - 1)
        first = _rows(torch.sub(first, ends[:-1], alpha=length), sequence).add_(number, alpha=length)
    entry = first[:, None] + counting(length, device)
    last = _rows(stop, sequence)[:, None]
    before = last - entry
    hidden = before <= 0
    entry = torch.minimum(entry, last - 1).clamp_(0, listed * size - 1)  # slots not in use may hold NaN
    page = entries.pages.index_select(0, (entry // size).flatten()).view(entry.shape)
    existing = page.clamp(0, page_count - 1)
    if device.type == "cpu" and bool(((page != existing) & ~hidden).any()):
        raise KernelExecutionError(
            f"{operation}: {entries.name}", f"pages below {page_count}", str(entries.pages.tolist())
        )
    return Blocks(sequence, torch.add(entry % size, existing, alpha=size), before, hidden, ends)
