"""Signatures of functions of kernel libraries, as their releases have them, and stand-ins that refuse any other call.

tests/gpu compares them with the installed libraries.
"""

SIGNATURES = {
    # flash-attn 2.8
    "flash_attn:flash_attn_func": (
        "q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "alibi_slopes=None, deterministic=False, return_attn_probs=False"
    ),
    "flash_attn:flash_attn_varlen_func": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, "
        "causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
        "return_attn_probs=False, block_table=None"
    ),
    "flash_attn:flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
        "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    ),
    # flash-attn-3 3.0
    "flash_attn_interface:flash_attn_func": (
        "q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False"
    ),
    "flash_attn_interface:flash_attn_varlen_func": (
        "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q=None, seqused_k=None, "
        "softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None, "
        "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
        "sm_margin=0, return_attn_probs=False"
    ),
    "flash_attn_interface:flash_attn_with_kvcache": (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
        "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
        "max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, "
        "rotary_interleaved=True, scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, "
        "return_softmax_lse=False"
    ),
    # flash-attn-4 4.0.0b36
    "flash_attn.cute:flash_attn_func": (
        "q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None), "
        "learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, score_mod=None, "
        "score_mod_bwd=None, mask_mod=None, aux_tensors=None, aux_scalars=None, block_sparse_tensors=None, "
        "block_sparse_tensors_bwd=None, return_lse=False, gather_bwd_recompute_p=False, gather_bwd_token_chunk=None"
    ),
    "flash_attn.cute:flash_attn_varlen_func": (
        "q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, "
        "min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, "
        "softmax_scale=None, causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, "
        "pack_gqa=None, deterministic=False, score_mod=None, score_mod_bwd=None, mask_mod=None, "
        "block_sparse_tensors=None, aux_tensors=None, aux_scalars=None, return_lse=False, scheduler_metadata=None, "
        "seqlen_k_per_split=None, disable_scheduler_metadata=False, gather_bwd_recompute_p=False, "
        "gather_bwd_token_chunk=None"
    ),
    # xformers 0.0.35
    "xformers.ops.fmha:memory_efficient_attention_forward": (
        "query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None"
    ),
    "xformers.ops.fmha:memory_efficient_attention_forward_requires_grad": (
        "query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None, output_dtype=None"
    ),
    # nvidia-cudnn-frontend 1.32, without self; parameters of sdpa in any order, by name
    "cudnn:pygraph.tensor": (
        "dim, stride=None, data_type=None, is_virtual=False, is_pass_by_value=False, ragged_offset=None, "
        "reordering_type=None, name='', uid=None, ragged_offset_multiplier=1, alignment_value=1"
    ),
    "cudnn:pygraph.sdpa": (
        "*, q, k, v, attn_scale=None, bias=None, use_alibi_mask=False, use_padding_mask=False, seq_len_q=None, "
        "seq_len_kv=None, diagonal_alignment=None, diagonal_band_left_bound=None, diagonal_band_right_bound=None, "
        "dropout=None, rng_dump=None, paged_attention_k_table=None, paged_attention_v_table=None, "
        "paged_attention_max_seq_len_kv=None, max_total_seq_len_q=None, max_total_seq_len_kv=None, "
        "compute_data_type=None, name='', generate_stats=None, implementation=None, score_max=None, "
        "score_sum_exp=None, sink_token=None, unfuse_fma=False, cu_seq_len_q=None, cu_seq_len_kv=None, "
        "stats_use_log2=False"
    ),
    # vllm 0.25
    "vllm.vllm_flash_attn.flash_attn_interface:flash_attn_varlen_func": (
        "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None, "
        "dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None, "
        "deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None, "
        "scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0, "
        "output_scale=None, fa_version=2, s_aux=None, cp_world_size=1, cp_rank=0, cp_tot_seqused_k=None, "
        "mask_mod=None, aux_tensors=None, dynamic_causal=None"
    ),
    # flashinfer 0.6.13; later releases add parameters. Methods are without self.
    "flashinfer:merge_state": "v_a, s_a, v_b, s_b",
    "flashinfer:merge_states": "v, s",
    "flashinfer:single_prefill_with_kv_cache": (
        "q, k, v, scale_q=None, scale_k=None, scale_v=None, o_dtype=None, custom_mask=None, "
        "packed_custom_mask=None, causal=False, kv_layout='NHD', pos_encoding_mode='NONE', "
        "use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None, rope_scale=None, "
        "rope_theta=None, backend='auto', return_lse=False, kv_cache_sf=None, k_scale=None, v_scale=None"
    ),
    "flashinfer:single_decode_with_kv_cache": (
        "q, k, v, kv_layout='NHD', pos_encoding_mode='NONE', use_tensor_cores=False, q_scale=None, k_scale=None, "
        "v_scale=None, window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, "
        "return_lse=False"
    ),
    "flashinfer.decode:xqa_batch_decode_with_kv_cache": (
        "query, kv_cache, workspace_buffer, block_tables, seq_lens, max_seq_len, bmm1_scale=1.0, bmm2_scale=1.0, "
        "window_left=-1, out=None, sinks=None, kv_layout='NHD', enable_pdl=None, q_len_per_req=1, o_scale=1.0, "
        "mask=None, kv_cache_sf=None"
    ),
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper.__init__": (
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, use_tensor_cores=False, "
        "paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, "
        "backend='auto', jit_args=None"
    ),
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper.plan": (
        "indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, "
        "pos_encoding_mode='NONE', window_left=-1, logits_soft_cap=None, q_data_type='float16', "
        "kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None, "
        "non_blocking=True, block_tables=None, seq_lens=None, fixed_split_size=None, disable_split_kv=False, "
        "q_len_per_req=1"
    ),
    "flashinfer:BatchDecodeWithPagedKVCacheWrapper.run": (
        "q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, "
        "return_lse=False, enable_pdl=None, window_left=None, sinks=None, q_len_per_req=None, "
        "skip_softmax_threshold_scale_factor=None, kv_cache_sf=None"
    ),
    "flashinfer:BatchPrefillWithPagedKVCacheWrapper.__init__": (
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, "
        "paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None, "
        "custom_mask_buf=None, mask_indptr_buf=None, backend='auto', jit_args=None, jit_kwargs=None"
    ),
    "flashinfer:BatchPrefillWithPagedKVCacheWrapper.plan": (
        "qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads, "
        "head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, packed_custom_mask=None, causal=False, "
        "pos_encoding_mode='NONE', use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, "
        "logits_soft_cap=None, rope_scale=None, rope_theta=None, q_data_type='float16', kv_data_type=None, "
        "o_data_type=None, non_blocking=True, prefix_len_ptr=None, token_pos_in_items_ptr=None, "
        "token_pos_in_items_len=0, max_item_len_ptr=None, seq_lens=None, seq_lens_q=None, block_tables=None, "
        "max_token_per_sequence=None, max_sequence_kv=None, fixed_split_size=None, disable_split_kv=False"
    ),
    "flashinfer:BatchPrefillWithPagedKVCacheWrapper.run": (
        "q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, "
        "return_lse=False, enable_pdl=None, window_left=None, sinks=None, kv_cache_sf=None, "
        "skip_softmax_threshold_scale_factor=None"
    ),
    "flashinfer:BatchPrefillWithRaggedKVCacheWrapper.__init__": (
        "float_workspace_buffer, kv_layout='NHD', use_cuda_graph=False, qo_indptr_buf=None, kv_indptr_buf=None, "
        "custom_mask_buf=None, mask_indptr_buf=None, backend='auto', jit_args=None, jit_kwargs=None"
    ),
    "flashinfer:BatchPrefillWithRaggedKVCacheWrapper.plan": (
        "qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, custom_mask=None, "
        "packed_custom_mask=None, causal=False, pos_encoding_mode='NONE', use_fp16_qk_reduction=False, "
        "window_left=-1, logits_soft_cap=None, sm_scale=None, rope_scale=None, rope_theta=None, "
        "q_data_type='float16', kv_data_type=None, o_data_type=None, non_blocking=True, prefix_len_ptr=None, "
        "token_pos_in_items_ptr=None, token_pos_in_items_len=0, max_item_len_ptr=None, fixed_split_size=None, "
        "disable_split_kv=False, seq_lens=None, seq_lens_q=None, max_token_per_sequence=None, "
        "max_sequence_kv=None, v_indptr=None, o_indptr=None"
    ),
    "flashinfer:BatchPrefillWithRaggedKVCacheWrapper.run": (
        "q, k, v, *args, q_scale=None, k_scale=None, v_scale=None, o_scale=None, out=None, lse=None, "
        "return_lse=False, enable_pdl=None, kv_cache_sf=None"
    ),
    "flashinfer.mla:BatchMLAPagedAttentionWrapper.__init__": (
        "float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None, "
        "kv_len_arr=None, backend='auto'"
    ),
    "flashinfer.mla:BatchMLAPagedAttentionWrapper.plan": (
        "qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size, causal, "
        "sm_scale, q_data_type, kv_data_type, use_profiler=False"
    ),
    "flashinfer.mla:BatchMLAPagedAttentionWrapper.run": (
        "q_nope, q_pe, ckv_cache, kpe_cache, out=None, lse=None, return_lse=False, profiler_buffer=None, "
        "kv_len=None, page_table=None, return_lse_base_on_e=False, o_scale=None"
    ),
    # vllm 0.25 and sgl-flash-mla 1.0, which has more after num_splits
    "vllm.third_party.flashmla.flash_mla_interface:flash_mla_with_kvcache": (
        "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
        "softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, "
        "extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None"
    ),
    "flash_mla:flash_mla_with_kvcache": (
        "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
        "softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None, "
        "extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None"
    ),
}


def stand_in(place, body):
    """A function with the signature recorded for "module:function" that gives `body` its arguments by name."""
    names = {"body": body}
    exec(f"def function({SIGNATURES[place]}):\n    return body(dict(locals()))", names)
    return names["function"]


def stand_in_class(place, plan, run):
    """A class whose methods have the recorded signatures; plan(own, arguments) and run(own, arguments) do its work."""

    class Wrapper:
        def __init__(self, *given, **named):
            self.options = stand_in(f"{place}.__init__", dict)(*given, **named)
            self.planned = None

        def plan(self, *given, **named):
            self.planned = plan(self, stand_in(f"{place}.plan", dict)(*given, **named))

        def run(self, *given, **named):
            return run(self, stand_in(f"{place}.run", dict)(*given, **named))

    return Wrapper
