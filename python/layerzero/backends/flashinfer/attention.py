"""Dense attention with FlashInfer: one sequence without a plan, several with a plan made from shapes."""

import flashinfer
import flashinfer.decode
import torch

from layerzero.backends.flash_attn.packed import finished
from layerzero.backends.flashinfer.common import LN2, left_of
from layerzero.backends.flashinfer.packed import Lengths, prefill_ragged
from layerzero.backends.flashinfer.plans import workspace
from layerzero.backends.torch.attention import positive_scale
from layerzero.errors import KernelRefusedError


def _one(found, sinks, return_lse, layout):
    """Converts (s, h, d), and lse (s, h) to the base 2 if present, to the results of a batch of one."""
    output, lse = found if isinstance(found, tuple) else (found, None)
    output, lse = finished(output, None if lse is None else lse * LN2, sinks, return_lse)
    output = (output if layout == "BSHD" else output.transpose(0, 1)).unsqueeze(0)
    return (output, lse.transpose(0, 1).unsqueeze(0)) if return_lse else output


def single_prefill(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
):
    """Keys and values are views with the rows first, never HND: FlashInfer's kernel for SM90 takes heads for keys there and
    divides by zero, which ends the process."""
    query, scale = positive_scale(query, scale)
    q, k, v = (t[0] if layout == "BSHD" else t[0].transpose(0, 1) for t in (query, key, value))
    found = flashinfer.single_prefill_with_kv_cache(
        q,
        k,
        v,
        causal=bool(causal) or left_of(window) >= 0,  # a window ends at the row's own position
        kv_layout="NHD",
        sm_scale=scale,
        window_left=left_of(window),
        logits_soft_cap=softcap or 0.0,
        return_lse=return_lse or sinks is not None,
    )
    return _one(found, sinks, return_lse, layout)


def _blocks(device: torch.device) -> int:
    """Thread blocks that the device runs at once, at least."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _check_chunks(heads: int, keys: int, device: torch.device) -> None:
    """The kernel without tensor cores divides more than 256 keys into (blocks at once / heads) chunks, and by that number."""
    if keys > 256 and heads > _blocks(device):
        raise KernelRefusedError(
            f"{heads} key heads over {keys} keys: FlashInfer's decode kernel takes at most {_blocks(device)} key heads here"
        )


def _single_decode(use_tensor_cores):
    def decode(
        query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
    ):
        query, scale = positive_scale(query, scale)
        if not use_tensor_cores:
            keys, heads = key.shape[1:3] if layout == "BSHD" else key.shape[2:0:-1]
            _check_chunks(heads, keys, key.device)
        found = flashinfer.single_decode_with_kv_cache(
            query.reshape(-1, query.shape[-1]),
            key[0],
            value[0],
            kv_layout="NHD" if layout == "BSHD" else "HND",
            use_tensor_cores=use_tensor_cores,
            window_left=left_of(window),
            logits_soft_cap=softcap or 0.0,
            sm_scale=scale,
            return_lse=return_lse or sinks is not None,
        )
        rows = tuple(part.unsqueeze(0) for part in found) if isinstance(found, tuple) else found.unsqueeze(0)
        return _one(rows, sinks, return_lse, layout)

    return decode


single_decode = _single_decode(False)
single_decode_tensor_cores = _single_decode(True)


def batch_prefill(
    query, key, value, causal, scale, attn_mask, dropout_p, window, softcap, sinks, alibi_slopes, return_lse, layout
):
    """Packs sequences of equal length; the plan needs only their shapes."""
    q, k, v = (t if layout == "BSHD" else t.transpose(1, 2) for t in (query, key, value))
    b, s_q, s_kv = q.shape[0], q.shape[1], k.shape[1]
    lengths = Lengths.equal(b, s_q, s_kv)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    output, lse = prefill_ragged(q, k, v, lengths, causal, scale, window, softcap, sinks, return_lse)
    output = output.unflatten(0, (b, s_q))
    output = output if layout == "BSHD" else output.transpose(1, 2)
    return (output, lse.unflatten(0, (b, s_q)).transpose(1, 2)) if return_lse else output


def cross_single_prefill(query, key, value, scale, attn_mask, dropout_p, softcap, sinks, return_lse, layout):
    return single_prefill(query, key, value, False, scale, None, 0.0, None, softcap, sinks, None, return_lse, layout)


_XQA = 256 << 20  # bytes; the first 8 MiB are semaphores, which the kernel leaves at zero


def xqa(query, k_cache, v_cache, tables, lengths, scale, window, softcap, sinks, slopes, k_scale, v_scale, return_lse):
    """TensorRT-LLM's decode kernel, which takes a block table and lengths on the device, without a plan."""
    query, scale = positive_scale(query.squeeze(1), scale)
    longest = tables.shape[1] * k_cache.shape[1]
    used = lengths.clamp(0, longest).to(torch.int32)
    output = flashinfer.decode.xqa_batch_decode_with_kv_cache(
        query,
        (k_cache, v_cache),
        workspace(query.device, _XQA),
        tables.clamp(0, k_cache.shape[0] - 1).to(torch.int32),
        used,
        longest,
        bmm1_scale=scale,
        bmm2_scale=1.0,
        window_left=left_of(window),
        kv_layout="NHD",
    )
    return output.masked_fill((used == 0)[:, None, None], 0).unsqueeze(1)
