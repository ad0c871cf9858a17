"""Signatures of functions of kernel libraries, as their releases have them, and stand-ins that refuse any other call.

tests/gpu compares them with the installed libraries.
"""

SIGNATURES = {
    # flash-attn 2.8
    "flash_attn:flash_attn_func": "q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
    "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False",
    "flash_attn:flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
    "deterministic=False, return_attn_probs=False, block_table=None",
    "flash_attn:flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
    "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
    "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
    # flash-attn-3 3.0
    "flash_attn_interface:flash_attn_func": "q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, "
    "k_descale=None, v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, "
    "deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_interface:flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
    "seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, "
    "v_descale=None, window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, "
    "deterministic=False, sm_margin=0, return_attn_probs=False",
    "flash_attn_interface:flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, "
    "rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, "
    "cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, "
    "softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
    "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False",
    # vllm 0.25
    "vllm.vllm_flash_attn.flash_attn_interface:flash_attn_varlen_func": "q, k, v, max_seqlen_q, cu_seqlens_q, "
    "max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, dropout_p=0.0, softmax_scale=None, causal=False, "
    "window_size=None, softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, block_table=None, "
    "return_softmax_lse=False, out=None, scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, "
    "num_splits=0, output_scale=None, fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, "
    "mask_mod=None, aux_tensors=None, dynamic_causal=None",
    # flashinfer 0.6.13 and 0.7.2
    "flashinfer:merge_state": "v_a, s_a, v_b, s_b",
    "flashinfer:merge_states": "v, s",
}


def stand_in(place, body):
    """A function with the signature recorded for "module:function" that gives `body` its arguments by name."""
    names = {"body": body}
    exec(f"def function({SIGNATURES[place]}):\n    return body(dict(locals()))", names)  # noqa: S102
    return names["function"]
