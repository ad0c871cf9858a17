"""Packed and paged attention with FlashInfer's wrappers, which plan with lengths on the host (plans.py).

A plan is made at the first call with its tables; later calls with the same tables, those of other layers, reuse it.
Cases that FlashInfer does not define are refused before planning: rows that see no key, sequences without keys, empty
last pages.
"""

from typing import NamedTuple

import flashinfer
import flashinfer.mla
import torch
from torch.nn import functional as F

from layerzero.backends.flash_attn.packed import finished
from layerzero.backends.flashinfer.common import LN2, left_of
from layerzero.backends.flashinfer.plans import Known, known, planned
from layerzero.backends.torch.attention import positive_scale
from layerzero.errors import KernelRefusedError


class Lengths(NamedTuple):
    """Offsets of packed queries and keys, on the host."""

    queries: Known
    keys: Known

    @classmethod
    def equal(cls, batch: int, s_q: int, s_kv: int) -> "Lengths":
        found = _equal.get((batch, s_q, s_kv))
        if found is None:
            steps = (torch.arange(batch + 1, dtype=torch.int32) * s for s in (s_q, s_kv))
            found = _equal[batch, s_q, s_kv] = cls(*(Known(s, s, 0) for s in steps))
            if len(_equal) > 256:
                del _equal[next(iter(_equal))]
        return found


_equal: dict[tuple[int, int, int], Lengths] = {}


def _check_offsets(name, offsets, end):
    values = offsets.tolist()
    if values[0] != 0 or values[-1] > end or any(b < a for a, b in zip(values, values[1:], strict=False)):
        raise KernelRefusedError(f"{name}: wanted offsets from 0 up to at most {end}, got {values}")


def _check_rows(queries, keys, causal):
    """Refuses sequences with a row without a key, for which FlashInfer defines no result."""
    for n, length in zip(queries.tolist(), keys.tolist(), strict=True):
        if n and (not length or (causal and n > length)):
            raise KernelRefusedError(
                f"{n} queries over {length} keys: FlashInfer defines no result of a row without a key"
            )


def _options(query, causal, scale, window_left, softcap):
    return {
        "causal": bool(causal) or window_left >= 0,  # a window ends at the row's own position
        "sm_scale": scale,
        "window_left": window_left,
        "logits_soft_cap": softcap or 0.0,
        "q_data_type": query.dtype,
    }


def _whole(output, lse, total):
    """Appends zeros for the rows of no sequence, which follow the last sequence."""
    rest = total - output.shape[0]
    if not rest:
        return output, lse
    return F.pad(output, (0, 0, 0, 0, 0, rest)), None if lse is None else F.pad(lse, (0, 0, 0, rest), value=-torch.inf)


def _run(wrapper, query, used, tensors, sinks, return_lse):
    wants_lse = return_lse or sinks is not None
    found = wrapper.run(query[:used], *tensors, return_lse=wants_lse)
    output, lse = found if wants_lse else (found, None)
    output, lse = _whole(output, None if lse is None else lse * LN2, query.shape[0])
    return finished(output, lse, sinks, return_lse)


def prefill_ragged(query, key, value, lengths, causal, scale, window, softcap, sinks, return_lse):
    query, scale = positive_scale(query, scale)
    offsets = (lengths.queries.host, lengths.keys.host)
    options = _options(query, causal, scale, left_of(window), softcap)
    heads = (query.shape[1], key.shape[1], query.shape[2])

    def make(memory):
        for name, offset, end in zip(
            ("cu_seqlens_q", "cu_seqlens_kv"), offsets, (query.shape[0], key.shape[0]), strict=True
        ):
            _check_offsets(name, offset, end)
        _check_rows(offsets[0].diff(), offsets[1].diff(), options["causal"])
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(memory, "NHD")
        wrapper.plan(*offsets, *heads, **options)
        return wrapper

    key_of_plan = ("ragged", query.shape[0], key.shape[0], heads, tuple(options.items()))
    wrapper = planned(key_of_plan, tuple(lengths), query.device, make)
    return _run(wrapper, query, int(offsets[0][-1]), (key, value), sinks, return_lse)


def ragged_attention(
    query, key, value, cu_q, cu_k, causal, scale, window, softcap, sinks, slopes, max_q, max_k, return_lse
):
    lengths = Lengths(known("cu_seqlens_q", cu_q), known("cu_seqlens_kv", cu_k))
    both = prefill_ragged(query, key, value, lengths, causal, scale, window, softcap, sinks, return_lse)
    return both if return_lse else both[0]


class Pages(NamedTuple):
    """A CSR list of pages, on the host and on the device."""

    indptr: Known
    indices: Known
    last: Known

    def lengths(self, size: int) -> torch.Tensor:
        return (self.indptr.host.diff() - 1) * size + self.last.host

    def check(self, pages: int, size: int) -> None:
        """Refuses invalid lists; the reference serves such calls, or raises an error for invalid tables."""
        _check_offsets("kv_indptr", self.indptr.host, self.indices.host.shape[0])
        if bool((self.indptr.host.diff() == 0).any()) or bool((self.last.host == 0).any()):
            raise KernelRefusedError("a sequence without pages, or an empty last page: FlashInfer knows neither")
        used = self.indices.host[: int(self.indptr.host[-1])]
        for name, values, most in (("kv_indices", used, pages - 1), ("kv_last_page_len", self.last.host, size)):
            if bool(((values < 0) | (values > most)).any()):
                raise KernelRefusedError(f"{name}: wanted values from 0 to {most}, got {values.tolist()}")


def _pages(indptr, indices, last_page_len):
    return Pages(known("kv_indptr", indptr), known("kv_indices", indices), known("kv_last_page_len", last_page_len))


def _decode(use_tensor_cores):
    def paged_decode_attention(
        q, k_cache, v_cache, indptr, indices, last_page_len, sm_scale, window_left, softcap, sinks, slopes, k_scale,
        v_scale, return_lse,
    ):  # fmt: skip
        q, scale = positive_scale(q, sm_scale)
        pages, size = _pages(indptr, indices, last_page_len), k_cache.shape[1]
        options = _options(q, False, scale, window_left, softcap)
        del options["causal"]  # one query: the last position
        options["kv_data_type"] = k_cache.dtype
        shape = (q.shape[1], k_cache.shape[2], q.shape[2], size)

        def make(memory):
            pages.check(k_cache.shape[0], size)
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(memory, "NHD", use_tensor_cores=use_tensor_cores)
            wrapper.plan(pages.indptr.host, pages.indices.device, pages.last.host, *shape, **options)
            return wrapper

        key = ("decode", use_tensor_cores, k_cache.shape[0], shape, tuple(options.items()))
        wrapper = planned(key, tuple(pages), q.device, make)
        both = _run(wrapper, q, q.shape[0], ((k_cache, v_cache),), sinks, return_lse)
        return both if return_lse else both[0]

    return paged_decode_attention


paged_decode_attention = _decode(False)
paged_decode_attention_tensor_cores = _decode(True)


def paged_prefill_attention(
    query, k_cache, v_cache, qo_indptr, indptr, indices, last_page_len, sm_scale, causal, window_left, softcap, sinks,
    slopes, k_scale, v_scale, return_lse,
):  # fmt: skip
    query, scale = positive_scale(query, sm_scale)
    rows, pages, size = known("qo_indptr", qo_indptr), _pages(indptr, indices, last_page_len), k_cache.shape[1]
    options = _options(query, causal, scale, window_left, softcap) | {"kv_data_type": k_cache.dtype}
    shape = (query.shape[1], k_cache.shape[2], query.shape[2], size)

    def make(memory):
        pages.check(k_cache.shape[0], size)
        _check_offsets("qo_indptr", rows.host, query.shape[0])
        _check_rows(rows.host.diff(), pages.lengths(size), options["causal"])
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(memory, "NHD")
        wrapper.plan(rows.host, pages.indptr.host, pages.indices.device, pages.last.host, *shape, **options)
        return wrapper

    key = ("prefill", query.shape[0], k_cache.shape[0], shape, tuple(options.items()))
    wrapper = planned(key, (rows, *pages), query.device, make)
    both = _run(wrapper, query, int(rows.host[-1]), ((k_cache, v_cache),), sinks, return_lse)
    return both if return_lse else both[0]


def mla_decode_paged(q_nope, q_pe, ckv_cache, kpe_cache, indptr, indices, last_page_len, sm_scale, return_lse):
    (q_pe, _), (q_nope, sm_scale) = positive_scale(q_pe, sm_scale), positive_scale(q_nope, sm_scale)
    pages, size = _pages(indptr, indices, last_page_len), ckv_cache.shape[1]
    shape = (q_nope.shape[1], q_nope.shape[2], q_pe.shape[2], size)
    each = Lengths.equal(q_nope.shape[0], 1, 1).queries

    def make(memory):
        pages.check(ckv_cache.shape[0], size)
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(memory)
        tables = (each.host, pages.indptr.host, pages.indices.device, pages.lengths(size))
        wrapper.plan(*tables, *shape, False, sm_scale, q_nope.dtype, ckv_cache.dtype)
        return wrapper

    key = ("mla", ckv_cache.shape[0], shape, sm_scale, q_nope.dtype, ckv_cache.dtype)
    return planned(key, (each, *pages), q_nope.device, make).run(q_nope, q_pe, ckv_cache, kpe_cache)
