"""The attention operations with any build of FlashAttention, all of which take packed and paged sequences.

A package provides `forward`; this module converts the arguments and results of a call. Nothing is read from the device:
lengths stay there, and their bounds follow from shapes. Index data is clamped to the tensors' bounds, so that invalid
data reads other entries of the same tensors; offsets that their owner has declared (layerzero.torch.offsets) are passed on. All builds align causal triangles and windows bottom-right, as the
operations do, and return natural logarithms.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

import layerzero as lz
from layerzero.backends.torch.attention import positive_scale
from layerzero.backends.torch.varlen import completed, each, most_queries, packed_offsets
from layerzero.torch import offsets

ALL = (-1, -1)  # a window that hides nothing: keys left and right of a row's position


class Keys(NamedTuple):
    """Packed keys and values (tokens, h_kv, d) with `offsets`, or pages (pages, size, h_kv, d) with `used` and `table`."""

    key: torch.Tensor
    value: torch.Tensor
    longest: int  # upper bound of the keys of a sequence
    offsets: torch.Tensor | None = None  # (b + 1) int32
    used: torch.Tensor | None = None  # (b) int32 keys of each sequence
    table: torch.Tensor | None = None  # (b, n) int32 pages of each sequence


class How(NamedTuple):
    """The options of a call, in FlashAttention's terms."""

    causal: bool
    scale: float
    window: tuple[int, int] = ALL
    softcap: float = 0.0  # 0: none
    slopes: torch.Tensor | None = None  # (h) float32
    sinks: torch.Tensor | None = None  # (h) bfloat16; only if the package supports them


# Maps (query (n, h, d), keys, cu_q (b + 1) int32, most queries of a sequence, how, queries of every sequence or None if
# they differ) to output (n, h, d_v) and lse (n, h); the lse of a row without a key, or with NaN, is infinite.
Forward = Callable[[torch.Tensor, Keys, torch.Tensor, int, How, int | None], tuple[torch.Tensor, torch.Tensor]]


def slopes_of(slopes: torch.Tensor | None) -> torch.Tensor | None:
    return slopes if slopes is None else slopes.float().contiguous()


def window_of(window: int | None) -> tuple[int, int]:
    """Converts `window` keys, which end at and include the row's own position, also in calls that are not causal."""
    return ALL if window is None or window < 0 else (window - 1, 0)


def window_left_of(window_left: int) -> tuple[int, int]:
    return ALL if window_left < 0 else (window_left, 0)


def finished(output: torch.Tensor, lse: torch.Tensor | None, sinks: torch.Tensor | None, return_lse: bool) -> Any:
    """Returns output (..., h, d) and lse (..., h), -inf for a row without a key; sinks are a factor of the output."""
    if sinks is None and not return_lse:
        return output, None
    assert lse is not None
    lse = torch.where(lse.isinf(), output[..., 0].float() * 0 - torch.inf, lse)
    if sinks is not None:
        output = completed(output, lse, sinks, None, output.shape[-2]).to(output.dtype)
    return output, lse


def _int32(index: torch.Tensor) -> torch.Tensor:
    return index.to(torch.int32)


def pages_of(k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor, used: torch.Tensor) -> Keys:
    longest = table.shape[1] * k_cache.shape[1]
    return Keys(
        k_cache,
        v_cache,
        longest,
        used=_int32(used.clamp(0, longest)),
        table=_int32(table.clamp(0, k_cache.shape[0] - 1)),
    )


def csr(k_cache, v_cache, indptr, indices, last_page_len) -> Keys:
    """Converts a CSR list to a table as wide as all listed pages: the longest sequence is not known on the host."""
    table, used = lz.kv_page_table(indptr, indices, last_page_len, *k_cache.shape[:2])
    return Keys(k_cache, v_cache, indices.shape[0] * k_cache.shape[1], used=used[:-1], table=table[:-1])


def csr_and_queries(k_cache, v_cache, indptr, indices, last_page_len, qo_indptr, total) -> tuple[Keys, torch.Tensor]:
    """The same with one more sequence, without keys, for queries of none; and the offsets of all queries."""
    table, used, cu_q = lz.kv_page_table(
        indptr, indices, last_page_len, *k_cache.shape[:2], qo_indptr=qo_indptr, total_q=total
    )
    return Keys(k_cache, v_cache, indices.shape[0] * k_cache.shape[1], used=used, table=table), cu_q


class Operations:
    """Adapters of the operations over `forward`; they take an operation's parameters in the contract's order."""

    def __init__(self, forward: Forward, native_sinks: bool = False) -> None:
        self.forward = forward
        self.native_sinks = native_sinks  # in bfloat16; the package's lse then includes them

    def _run(self, query, keys, cu_q, most, how, rows, sinks, return_lse):
        query, scale = positive_scale(query, how.scale)
        native = self.native_sinks and sinks is not None and sinks.dtype == torch.bfloat16 and not return_lse
        how = how._replace(scale=scale, slopes=slopes_of(how.slopes), sinks=sinks.contiguous() if native else None)
        most = most_queries(most, cu_q.shape[0] - 1, query.shape[0])
        output, lse = self.forward(query, keys, cu_q, most, how, rows)
        return finished(output, lse, None if native else sinks, return_lse)

    def dense(self, query, key, value, causal, scale, window, softcap, sinks, slopes, return_lse):
        """Packs (b, s, h, d) tensors; returns output (b, s_q, h_q, d) and lse (b, h_q, s_q)."""
        b, s_q, s_kv = query.shape[0], query.shape[1], key.shape[1]
        keys = Keys(key.flatten(0, 1), value.flatten(0, 1), s_kv, offsets=each(b, s_kv, key.device))
        how = How(bool(causal), scale, window_of(window), softcap or 0.0, slopes)
        rows = query.flatten(0, 1)
        output, lse = self._run(rows, keys, each(b, s_q, query.device), s_q, how, s_q, sinks, return_lse)
        lse = lse.unflatten(0, (b, s_q)).transpose(1, 2) if return_lse else None
        return output.unflatten(0, (b, s_q)), lse

    def attention(
        self, query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse,
        layout,
    ):  # fmt: skip
        q, k, v = (t if layout == "BSHD" else t.transpose(1, 2) for t in (query, key, value))
        output, lse = self.dense(q, k, v, causal, scale, window, softcap, sinks, alibi_slopes, return_lse)
        output = output if layout == "BSHD" else output.transpose(1, 2)
        return (output, lse) if return_lse else output

    def cross_attention(self, query, key, value, scale, attn_mask, dropout_p, softcap, sinks, return_lse, layout):
        return self.attention(
            query, key, value, False, scale, None, 0.0, None, softcap, sinks, None, return_lse, layout
        )

    def ragged_attention(
        self, query, key, value, cu_q, cu_k, causal, scale, window, softcap, sinks, slopes, max_q, max_k, return_lse
    ):
        """Two more sequences hold the queries of none, without keys, and the keys of none, without queries."""
        total, how = query.shape[0], How(causal, scale, window_of(window), softcap or 0.0, slopes)
        rows = offsets.known(cu_q)
        columns = rows if cu_k is cu_q else offsets.known(cu_k)
        if rows is not None and columns is not None and rows.last == total and columns.last <= key.shape[0]:
            keys = Keys(key, value, max(columns.longest, 1), offsets=_int32(cu_k))
            both = self._run(query, keys, _int32(cu_q), rows.longest, how, None, sinks, return_lse)
            return both if return_lse else both[0]
        cu_q, begin = packed_offsets(_int32(cu_q), total), packed_offsets(_int32(cu_k), key.shape[0])
        cu_q, begin = F.pad(cu_q, (0, 1), value=total), torch.cat([begin[:-1], begin[-2:]])
        keys = Keys(key, value, key.shape[0], offsets=begin)
        both = self._run(query, keys, cu_q, total, how, None, sinks, return_lse)
        return both if return_lse else both[0]

    def paged_attention(
        self, query, k_cache, v_cache, tables, lengths, scale, window, softcap, sinks, slopes, k_scale, v_scale,
        return_lse,
    ):  # fmt: skip
        keys, b = pages_of(k_cache, v_cache, tables, lengths), query.shape[0]
        how = How(False, scale, window_of(window), softcap or 0.0, slopes)
        both = self._run(query.squeeze(1), keys, each(b, 1, query.device), 1, how, 1, sinks, return_lse)
        output = both[0].unsqueeze(1)
        return (output, both[1]) if return_lse else output

    def paged_decode_attention(
        self, q, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks, slopes,
        k_scale, v_scale, return_lse,
    ):  # fmt: skip
        keys = csr(k_cache, v_cache, indptr, indices, last_page_len)
        how = How(False, sm_scale, window_left_of(window_left), softcap or 0.0, slopes)
        both = self._run(q, keys, each(q.shape[0], 1, q.device), 1, how, 1, sinks, return_lse)
        return both if return_lse else both[0]

    def paged_cross_attention(
        self, query, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, softcap, sinks, k_scale, v_scale,
        return_lse,
    ):  # fmt: skip
        keys, (b, n) = csr(k_cache, v_cache, indptr, indices, last_page_len), query.shape[:2]
        how = How(False, sm_scale, softcap=softcap or 0.0)
        both = self._run(query.flatten(0, 1), keys, each(b, n, query.device), n, how, n, sinks, return_lse)
        output = both[0].unflatten(0, (b, n))
        return (output, both[1].unflatten(0, (b, n)).transpose(1, 2)) if return_lse else output

    def paged_prefill_attention(
        self, query, k_cache, v_cache, qo_indptr, indptr, indices, last_page_len, sm_scale, causal, window_left,
        softcap, sinks, slopes, k_scale, v_scale, return_lse,
    ):  # fmt: skip
        total = query.shape[0]
        keys, cu_q = csr_and_queries(k_cache, v_cache, indptr, indices, last_page_len, qo_indptr, total)
        how = How(causal, sm_scale, window_left_of(window_left), softcap or 0.0, slopes)
        both = self._run(query, keys, cu_q, total, how, None, sinks, return_lse)
        return both if return_lse else both[0]


class StridedOperations(Operations):
    """The operations with a function for four-axis tensors too, which takes any strides, so that nothing is packed.

    `options(slopes)` returns the package's own keyword arguments of that function.
    """

    def __init__(self, forward: Forward, function: Callable[..., Any], options: Callable[..., dict[str, Any]]) -> None:
        super().__init__(forward)
        self.function, self.options = function, options

    def dense(self, query, key, value, causal, scale, window, softcap, sinks, slopes, return_lse):
        query, scale = positive_scale(query, scale)
        common = {"softmax_scale": scale, "causal": bool(causal), "window_size": window_of(window)}
        common |= {"softcap": softcap or 0.0, "return_attn_probs": True}
        output, lse, *_ = self.function(query, key, value, **common, **self.options(slopes))
        output, lse = finished(output, lse.transpose(1, 2), sinks, return_lse)
        return output, lse.transpose(1, 2) if return_lse else None


def probe_of(adapter: Callable[..., Any]) -> Callable[[], None]:
    """Returns a probe: one query over two keys with equal logits must return the mean of their values."""

    def probe() -> None:
        key = torch.zeros(1, 2, 1, 64, dtype=torch.float16, device="cuda")
        value = torch.arange(2, dtype=torch.float16, device="cuda").view(1, 2, 1, 1).expand(1, 2, 1, 64).contiguous()
        query = torch.ones(1, 1, 1, 64, dtype=torch.float16, device="cuda")
        found = adapter(query, key, value, True, 1.0, None, 0.0, None, None, None, None, True, "BSHD")
        mean, lse = found[0].float().mean().item(), found[1].item()
        if abs(mean - 0.5) > 1e-2 or abs(lse - 0.6931) > 1e-2:
            raise RuntimeError(f"attention over values 0 and 1: wanted 0.5 and lse 0.6931, got {mean} and {lse}")

    return probe
