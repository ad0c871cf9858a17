"""FlashAttention 2 as vLLM builds it: only packed and paged sequences, so four-axis tensors are packed first."""

from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

from layerzero.backends.flash_attn.packed import Operations, probe_of


def _forward(query, keys, cu_q, most, how, rows):
    output, lse = flash_attn_varlen_func(
        query,
        keys.key,
        keys.value,
        most,
        cu_q,
        keys.longest,
        cu_seqlens_k=keys.offsets,
        seqused_k=keys.used,
        softmax_scale=how.scale,
        causal=how.causal,
        window_size=list(how.window),
        softcap=how.softcap,
        alibi_slopes=how.slopes,
        block_table=keys.table,
        return_softmax_lse=True,
        fa_version=2,
        s_aux=how.sinks,
    )
    return output, lse.transpose(0, 1)


operations = Operations(_forward)
attention = operations.attention
cross_attention = operations.cross_attention
ragged_attention = operations.ragged_attention
paged_attention = operations.paged_attention
paged_decode_attention = operations.paged_decode_attention
paged_cross_attention = operations.paged_cross_attention
paged_prefill_attention = operations.paged_prefill_attention
probe = probe_of(attention)
