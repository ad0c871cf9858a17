"""FlashAttention 2 and 3 as vLLM builds them: only packed and paged sequences, so four-axis tensors are packed first."""

import functools

from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

from layerzero.backends.flash_attn.packed import Operations


def _forward(version, query, keys, cu_q, most, how, rows):
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
        fa_version=version,
        s_aux=how.sinks,
    )
    return output, lse.transpose(0, 1)


def operations_of(version: int) -> Operations:
    return Operations(functools.partial(_forward, version), native_sinks=version == 3)
