"""The operations as functions of `layerzero`. Made by scripts/generate_api.py from the contracts in ops/. Do not edit."""

from collections.abc import Sequence
from typing import Literal, TypeVar, overload

import torch

# A torch.Tensor, or an array of another library with __dlpack__; outputs are of the inputs' kind.
T = TypeVar("T")

def gated_activation(
    input: T,
    *,
    activation: Literal[
        "silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"
    ] = "silu",
    limit: float | None = None,
    alpha: float = 1.0,
    up_offset: float = 0.0,
    interleaved: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """The activation of one half of the last axis times the other half, clamped if a limit is given."""

def geglu(
    gate: T,
    up: T,
    *,
    approximate: Literal["none", "tanh"] = "none",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """GELU of the gate times the other projection."""

def activation(
    input: T,
    function: Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"],
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """An activation function of every element."""

def silu_and_mul(
    input: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """SiLU of the first half of the last axis times the second half."""

def swiglu(
    gate: T,
    up: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """SiLU of the gate times the other projection."""

@overload
def paged_attention(
    query: T,
    key_cache: T,
    value_cache: T,
    block_tables: T,
    context_lens: T,
    scale: float | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Decode attention over a paged cache whose blocks are listed in a padded table."""

@overload
def paged_attention(
    query: T,
    key_cache: T,
    value_cache: T,
    block_tables: T,
    context_lens: T,
    scale: float | None = None,
    *,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Decode attention over a paged cache whose blocks are listed in a padded table."""

@overload
def cascade_decode_attention(
    query: T,
    shared_k: T,
    shared_v: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Decode attention over a prefix that all sequences share and a paged suffix of each, merged."""

@overload
def cascade_decode_attention(
    query: T,
    shared_k: T,
    shared_v: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Decode attention over a prefix that all sequences share and a paged suffix of each, merged."""

@overload
def cross_attention(
    query: T,
    key: T,
    value: T,
    *,
    scale: float | None = None,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    sinks: T | None = None,
    return_lse: Literal[False] = False,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention of queries over another sequence's keys and values; never causal."""

@overload
def cross_attention(
    query: T,
    key: T,
    value: T,
    *,
    scale: float | None = None,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    softcap: float | None = None,
    sinks: T | None = None,
    return_lse: Literal[True],
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention of queries over another sequence's keys and values; never causal."""

@overload
def attention(
    query: T,
    key: T,
    value: T,
    *,
    causal: bool | None = None,
    scale: float | None = None,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    return_lse: Literal[False] = False,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Scaled dot product attention: softmax(scale * query key^T + biases) value, per head."""

@overload
def attention(
    query: T,
    key: T,
    value: T,
    *,
    causal: bool | None = None,
    scale: float | None = None,
    attn_mask: T | None = None,
    dropout_p: float = 0.0,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    return_lse: Literal[True],
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Scaled dot product attention: softmax(scale * query key^T + biases) value, per head."""

def gated_delta_rule(
    query: T,
    key: T,
    value: T,
    g: T,
    beta: T,
    state: T,
    *,
    a_log: T | None = None,
    dt_bias: T | None = None,
    scale: float | None = None,
    l2_eps: float | None = None,
    beta_scale: float = 1.0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Linear attention by the gated delta rule over a state that is kept from call to call."""

def merge_attention(
    v_a: T,
    s_a: T,
    v_b: T,
    s_b: T,
    *,
    sinks: T | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Merges attention over two disjoint sets of keys (cascade, split keys)."""

def merge_partials(
    partials: T,
    part_lse: T,
    row_sum: T | None = None,
    *,
    sinks: T | None = None,
    dtype: Literal["float32", "bfloat16", "float64"] = "float32",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Merges any number of attention partials: normalized with lse, or raw with row max and row sum."""

@overload
def mla_decode(
    q_nope: T,
    q_pe: T,
    ckv: T,
    kpe: T,
    sm_scale: float,
    *,
    causal: bool = False,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Decode of multi-head latent attention over one sequence of compressed entries."""

@overload
def mla_decode(
    q_nope: T,
    q_pe: T,
    ckv: T,
    kpe: T,
    sm_scale: float,
    *,
    causal: bool = False,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Decode of multi-head latent attention over one sequence of compressed entries."""

@overload
def mla_decode_paged(
    q_nope: T,
    q_pe: T,
    ckv_cache: T,
    kpe_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float,
    *,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Decode of multi-head latent attention over a paged cache of compressed entries."""

@overload
def mla_decode_paged(
    q_nope: T,
    q_pe: T,
    ckv_cache: T,
    kpe_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float,
    *,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Decode of multi-head latent attention over a paged cache of compressed entries."""

@overload
def mla_prefill(
    q_nope: T,
    q_pe: T,
    k_nope: T,
    k_pe: T,
    value: T,
    *,
    causal: bool = True,
    sm_scale: float | None = None,
    return_lse: Literal[False] = False,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Prefill of multi-head latent attention with keys and values projected up from the latents."""

@overload
def mla_prefill(
    q_nope: T,
    q_pe: T,
    k_nope: T,
    k_pe: T,
    value: T,
    *,
    causal: bool = True,
    sm_scale: float | None = None,
    return_lse: Literal[True],
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Prefill of multi-head latent attention with keys and values projected up from the latents."""

@overload
def paged_decode_attention(
    q: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Decode attention over a paged cache whose pages are listed in CSR form."""

@overload
def paged_decode_attention(
    q: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Decode attention over a paged cache whose pages are listed in CSR form."""

@overload
def paged_cross_attention(
    query: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    softcap: float | None = None,
    sinks: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention of queries over another sequence's keys and values in a paged cache; never causal."""

@overload
def paged_cross_attention(
    query: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    softcap: float | None = None,
    sinks: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention of queries over another sequence's keys and values in a paged cache; never causal."""

@overload
def paged_prefill_attention(
    query: T,
    paged_k_cache: T,
    paged_v_cache: T,
    qo_indptr: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    causal: bool = True,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention of packed queries over a paged cache whose pages are listed in CSR form."""

@overload
def paged_prefill_attention(
    query: T,
    paged_k_cache: T,
    paged_v_cache: T,
    qo_indptr: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    causal: bool = True,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention of packed queries over a paged cache whose pages are listed in CSR form."""

@overload
def attention_partials(
    query: T,
    key: T,
    value: T,
    num_splits: int,
    *,
    raw: Literal[False] = False,
    causal: bool | None = None,
    scale: float | None = None,
    attn_mask: T | None = None,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: T | None = None,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention over runs of the keys, without the merge, for merge_partials."""

@overload
def attention_partials(
    query: T,
    key: T,
    value: T,
    num_splits: int,
    *,
    raw: Literal[True],
    causal: bool | None = None,
    scale: float | None = None,
    attn_mask: T | None = None,
    window: int | None = None,
    softcap: float | None = None,
    alibi_slopes: T | None = None,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T]:
    """Attention over runs of the keys, without the merge, for merge_partials."""

@overload
def pod_attention(
    query_p: T,
    key_p: T,
    value_p: T,
    cu_seqlens_q: T,
    cu_seqlens_kv: T,
    query_d: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    causal: bool = True,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention of packed prefill sequences and of paged decode queries in one call."""

@overload
def pod_attention(
    query_p: T,
    key_p: T,
    value_p: T,
    cu_seqlens_q: T,
    cu_seqlens_kv: T,
    query_d: T,
    paged_k_cache: T,
    paged_v_cache: T,
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    sm_scale: float | None = None,
    *,
    causal: bool = True,
    window_left: int = -1,
    softcap: float | None = None,
    sinks: T | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T, T]:
    """Attention of packed prefill sequences and of paged decode queries in one call."""

@overload
def ragged_attention(
    query: T,
    key: T,
    value: T,
    cu_seqlens_q: T,
    cu_seqlens_kv: T,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention over packed sequences of different lengths; no token sees another sequence."""

@overload
def ragged_attention(
    query: T,
    key: T,
    value: T,
    cu_seqlens_q: T,
    cu_seqlens_kv: T,
    *,
    causal: bool = True,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: T | None = None,
    alibi_slopes: T | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_kv: int | None = None,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention over packed sequences of different lengths; no token sees another sequence."""

@overload
def block_sparse_attention(
    q: T,
    k: T,
    v: T,
    indptr: T,
    indices: T,
    R: int,
    C: int,
    sm_scale: float | None = None,
    *,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention in which blocks of queries see listed blocks of keys (BSR)."""

@overload
def block_sparse_attention(
    q: T,
    k: T,
    v: T,
    indptr: T,
    indices: T,
    R: int,
    C: int,
    sm_scale: float | None = None,
    *,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention in which blocks of queries see listed blocks of keys (BSR)."""

@overload
def variable_block_sparse_attention(
    q: T,
    k: T,
    v: T,
    block_mask: T,
    row_sizes: T,
    col_sizes: T,
    sm_scale: float | None = None,
    *,
    return_lse: Literal[False] = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Attention in which blocks of queries see blocks of keys, of different sizes, by a map per KV head."""

@overload
def variable_block_sparse_attention(
    q: T,
    k: T,
    v: T,
    block_mask: T,
    row_sizes: T,
    col_sizes: T,
    sm_scale: float | None = None,
    *,
    return_lse: Literal[True],
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Attention in which blocks of queries see blocks of keys, of different sizes, by a map per KV head."""

def convert(
    input: T,
    dtype: Literal[
        "float64",
        "float32",
        "tf32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
    ],
    *,
    source: Literal[
        "input",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
        "float8_e8m0fnu",
    ] = "input",
    saturate: bool | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Converts between float formats: FP64 to FP4, TF32, and the vendors' forms of FP8."""

def convert_layout(
    input: T,
    source: Literal["BSHD", "BHSD", "NHD", "HND"],
    target: Literal["BSHD", "BHSD", "NHD", "HND"],
    *,
    batch: int = 1,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Copies a tensor of attention into another layout: BSHD, BHSD, NHD or HND."""

def causal_conv1d(
    input: T,
    weight: T,
    state: T,
    *,
    bias: T | None = None,
    activation: Literal["none", "silu"] = "none",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Causal convolution of each channel separately, over a state that is kept from call to call."""

def conv1d(
    input: T,
    weight: T,
    bias: T | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Convolution (cross-correlation) over one axis."""

def conv2d(
    input: T,
    weight: T,
    bias: T | None = None,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_h: int = 0,
    padding_w: int = 0,
    dilation_h: int = 1,
    dilation_w: int = 1,
    groups: int = 1,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Convolution (cross-correlation) over two axes."""

def conv3d(
    input: T,
    weight: T,
    bias: T | None = None,
    stride_d: int = 1,
    stride_h: int = 1,
    stride_w: int = 1,
    padding_d: int = 0,
    padding_h: int = 0,
    padding_w: int = 0,
    dilation_d: int = 1,
    dilation_h: int = 1,
    dilation_w: int = 1,
    groups: int = 1,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Convolution (cross-correlation) over three axes."""

def dequantize_gguf(
    data: T,
    columns: int,
    *,
    format: Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"],
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Dequantizes rows of GGUF blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)."""

def dequantize(
    values: T,
    scale: T,
    format: Literal[
        "int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"
    ],
    *,
    axis: int | None = None,
    zero_point: T | None = None,
    tensor_scale: T | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """The values of int8, int4, FP8, MXFP8, MXFP4 and NVFP4 tensors."""

def elementwise(
    input: T,
    other: T,
    function: Literal["add", "sub", "mul", "div", "maximum", "minimum"] = "add",
    *,
    scale: float = 1.0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Arithmetic of two tensors, element by element: sum, difference, product, quotient, larger, smaller."""

def cast(
    input: T,
    dtype: Literal["float32", "float64", "float16", "bfloat16"],
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Converts between the float dtypes."""

def embedding(
    input: T,
    weight: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Rows of a table, by index."""

def kv_append_paged(
    key_cache: T,
    value_cache: T,
    key: T,
    value: T,
    slots: T,
    *,
    k_scale: T | None = None,
    v_scale: T | None = None,
    layout: Literal["NHD", "HND"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> None:
    """Writes new key and value rows into the slots of a paged cache, in place."""

def kv_block_table_update(
    block_tables: T,
    updates: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> None:
    """Writes entries of a block table, in place."""

def kv_compact(
    key_cache: T,
    value_cache: T,
    moves: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> None:
    """Copies blocks of a paged cache within it, in place."""

def kv_gather(
    cache: T,
    slots: T,
    *,
    scale: T | None = None,
    dtype: Literal["float32", "float64", "float16", "bfloat16"] | None = None,
    layout: Literal["NHD", "HND"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Rows of a paged cache, by slot."""

@overload
def kv_page_table(
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    num_pages: int,
    page_size: int,
    *,
    qo_indptr: None = None,
    total_q: int = 0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """A page list in CSR form as a table of pages, for functions that take block tables."""

@overload
def kv_page_table(
    kv_indptr: T,
    kv_indices: T,
    kv_last_page_len: T,
    num_pages: int,
    page_size: int,
    *,
    qo_indptr: T,
    total_q: int = 0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T]:
    """A page list in CSR form as a table of pages, for functions that take block tables."""

def kv_rope_append_paged(
    query: T,
    key: T,
    value: T,
    cos: T,
    sin: T,
    key_cache: T,
    value_cache: T,
    slots: T,
    *,
    position_ids: T | None = None,
    interleaved: bool = False,
    rotary_dim: int | None = None,
    k_scale: T | None = None,
    v_scale: T | None = None,
    layout: Literal["NHD", "HND"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Rotates queries and new keys by their positions, and writes keys and values into a paged cache."""

def fused_mlp(
    input: T,
    gate_weight: T,
    down_weight: T,
    *,
    up_weight: T | None = None,
    gate_bias: T | None = None,
    up_bias: T | None = None,
    down_bias: T | None = None,
    activation: Literal[
        "silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"
    ] = "silu",
    limit: float | None = None,
    alpha: float = 1.0,
    up_offset: float = 0.0,
    interleaved: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """A feed-forward block: SwiGLU, GeGLU, the clamped SwiGLU and similar blocks, or an MLP without a gate."""

def head_linear(
    input: T,
    weight: T,
    dtype: Literal["float32", "float16", "bfloat16"],
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix products of the heads of each row, each with a weight of its own."""

def linear(
    input: T,
    weight: T,
    bias: T | None = None,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix product with row-major weights, plus a bias."""

def linear_gguf(
    input: T,
    weight: T,
    format: Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"],
    bias: T | None = None,
    *,
    packed: T | None = None,
    activations: Literal["input", "int8"] = "input",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix product with weights as stored in a GGUF file, plus a bias."""

def linear_gguf_prepack(
    weight: T,
    k: int,
    format: Literal["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k"],
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Puts rows of GGUF blocks into the order that fast kernels of linear_gguf read."""

def linear_panels(
    input: T,
    panels: T,
    bias: T | None = None,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix product with float weights that were put into panels of 64 columns once, plus a bias."""

def linear_panels_prepack(
    weight: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Puts float weights into the order that the fastest matrix products read, for linear_panels."""

def linear_prepack(
    weight: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Puts 4-bit weights into the order that fast kernels of linear_quantized read."""

def linear_quantized(
    input: T,
    weight: T,
    weight_scale: T,
    format: Literal[
        "int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"
    ],
    bias: T | None = None,
    *,
    zero_point: T | None = None,
    tensor_scale: T | None = None,
    packed: T | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix product with int8, int4, FP8, MXFP8, MXFP4 or NVFP4 weights, plus a bias."""

def fused_moe(
    input: T,
    expert_ids: T,
    expert_weights: T,
    gate_weight: T,
    down_weight: T,
    *,
    up_weight: T | None = None,
    gate_bias: T | None = None,
    up_bias: T | None = None,
    down_bias: T | None = None,
    activation: Literal[
        "silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu", "sigmoid", "tanh", "identity"
    ] = "silu",
    limit: float | None = None,
    alpha: float = 1.0,
    up_offset: float = 0.0,
    interleaved: bool = False,
    weighted: Literal["output", "input"] = "output",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Mixture of experts: the weighted sum of the chosen experts' feed-forward blocks."""

def grouped_gemm(
    input: T,
    weight: T,
    offsets: T,
    bias: T | None = None,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Matrix products of ranges of rows, each with the weights of its expert."""

def moe_route(
    logits: T,
    k: int,
    *,
    bias: T | None = None,
    scoring: Literal["softmax", "sigmoid", "sqrt_softplus", "sparsemixer"] = "softmax",
    renormalize: bool = False,
    scale: float = 1.0,
    num_groups: int = 1,
    top_groups: int = 1,
    group_score: Literal["max", "top2_sum"] = "max",
    min_sum: float = 0.0,
    jitter: float = 0.0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Routes tokens to experts: scores, group-limited top-k choice with a bias, weights."""

def layer_norm(
    input: T,
    normalized_shape: int | Sequence[int],
    weight: T | None = None,
    bias: T | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Layer normalization over the last axis."""

def fused_add_layer_norm(
    input: T,
    residual: T,
    normalized_shape: int | Sequence[int],
    weight: T | None = None,
    bias: T | None = None,
    eps: float = 1e-05,
    *,
    weight_offset: float = 0.0,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Residual addition and layer normalization of the sum over the last axis."""

def rms_norm(
    input: T,
    weight: T | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Root mean square normalization over the last axis."""

def fused_add_rms_norm(
    input: T,
    residual: T,
    weight: T | None = None,
    eps: float = 1e-06,
    *,
    weight_offset: float = 0.0,
    normalized_shape: int | Sequence[int] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Residual addition and root mean square normalization of the sum over the last axis."""

def pool1d(
    input: T,
    window: int,
    stride: int,
    padding: int = 0,
    *,
    mode: Literal["max", "mean"],
    count_include_pad: bool = True,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Maximum or mean of windows over one axis."""

def pool2d(
    input: T,
    window_h: int,
    window_w: int,
    stride_h: int,
    stride_w: int,
    padding_h: int = 0,
    padding_w: int = 0,
    *,
    mode: Literal["max", "mean"],
    count_include_pad: bool = True,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Maximum or mean of windows over two axes."""

def sequence_pool(
    input: T,
    mask: T | None = None,
    mode: Literal["mean", "first", "last", "max"] = "mean",
    *,
    lengths: T | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Pools the vectors of each sequence's valid tokens into one: their mean, maximum, the first or the last."""

def alibi(
    slopes: T,
    s_q: int,
    s_kv: int,
    *,
    causal: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Distance bias of attention with linear biases (ALiBi), per head, query and key."""

def rope(
    input: T,
    cos: T,
    sin: T,
    interleaved: bool = False,
    *,
    position_ids: T | None = None,
    inverse: bool = False,
    rotary_dim: int | None = None,
    layout: Literal["BSHD", "BHSD"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Rotary position embedding of the first columns of each head, from cosine and sine tables."""

def quantize_asymmetric(
    input: T,
    dtype: Literal["int8", "uint8", "int4", "uint4"],
    *,
    axis: int | None = None,
    group_size: int = 0,
    block_rows: int = 1,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T]:
    """Quantizes to 8-bit or 4-bit integers with zero points."""

def quantize_nvfp4(
    input: T,
    *,
    per_row: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T]:
    """Quantizes to NVFP4 with both levels of scales."""

@overload
def quantize(
    input: T,
    dtype: Literal[
        "int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"
    ],
    scale: None = None,
    *,
    axis: int | None = None,
    group_size: int = 0,
    block_rows: int = 1,
    zero_point: T | None = None,
    tensor_scale: T | None = None,
    scale_rule: Literal["ceil", "floor"] = "ceil",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Quantizes to int8, int4, FP8, MXFP8, MXFP4 or NVFP4; computes scales unless they are given."""

@overload
def quantize(
    input: T,
    dtype: Literal[
        "int8", "uint8", "int4", "uint4", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "nvfp4"
    ],
    scale: T,
    *,
    axis: int | None = None,
    group_size: int = 0,
    block_rows: int = 1,
    zero_point: T | None = None,
    tensor_scale: T | None = None,
    scale_rule: Literal["ceil", "floor"] = "ceil",
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Quantizes to int8, int4, FP8, MXFP8, MXFP4 or NVFP4; computes scales unless they are given."""

def swizzle_scales(
    scale: T,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Puts block scales into the 128x4 order that block-scaled matrix products read."""

def unswizzle_scales(
    scale: T,
    rows: int,
    columns: int,
    *,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Takes block scales out of the 128x4 order of block-scaled matrix products."""

def reduce_tree(
    input: T,
    *,
    dtype: Literal["float32", "float64", "float16", "bfloat16"] | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Sums partial results over the first axis in a fixed binary tree: the same bits on every kernel."""

def sample_minp(
    logits: T,
    min_p: float | None = None,
    *,
    temperature: float = 1.0,
    seed: int | None = None,
    offset: int = 0,
    row_min_p: T | None = None,
    row_temperature: T | None = None,
    uniform: T | None = None,
    generator: torch.Generator | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Samples among the tokens whose probability is at least min_p times the largest."""

def softmax(
    logits: T,
    temperature: float = 1.0,
    *,
    row_temperature: T | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Softmax over the last axis with a temperature, in float32."""

def speculative_sample(
    draft_probs: T,
    draft_token_ids: T,
    target_probs: T,
    *,
    seed: int | None = None,
    offset: int = 0,
    uniform: T | None = None,
    generator: torch.Generator | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """Chain speculative sampling: verifies drafted tokens against the target's distributions."""

def sample_topk(
    logits: T,
    k: int | None = None,
    *,
    temperature: float = 1.0,
    seed: int | None = None,
    offset: int = 0,
    row_k: T | None = None,
    row_temperature: T | None = None,
    uniform: T | None = None,
    generator: torch.Generator | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Samples among the k largest logits."""

def sample_topk_topp(
    logits: T,
    k: int | None = None,
    p: float | None = None,
    *,
    temperature: float = 1.0,
    seed: int | None = None,
    offset: int = 0,
    row_k: T | None = None,
    row_p: T | None = None,
    row_temperature: T | None = None,
    uniform: T | None = None,
    generator: torch.Generator | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Samples from the top-p set of the k largest logits."""

def sample_topp(
    logits: T,
    p: float | None = None,
    *,
    temperature: float = 1.0,
    seed: int | None = None,
    offset: int = 0,
    row_p: T | None = None,
    row_temperature: T | None = None,
    uniform: T | None = None,
    generator: torch.Generator | None = None,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> T:
    """Samples from the smallest set of most probable tokens whose probability is at least p (nucleus)."""

def tokenize_decode(
    ids: T,
    starts: T,
    tokenizer: int,
    capacity: int,
    *,
    skip_special_tokens: bool = True,
    bpe: bool = False,
    tokenizers: bool = False,
    tiktoken: bool = False,
    sentencepiece: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """The texts of token ids."""

@overload
def tokenize_encode(
    text: T,
    starts: T,
    tokenizer: int,
    capacity: int,
    *,
    add_special_tokens: bool = True,
    bpe: bool = False,
    tokenizers: bool = False,
    tiktoken: bool = False,
    sentencepiece: bool = False,
    return_offsets: Literal[False] = False,
    bpe_offsets: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T]:
    """The token ids of texts."""

@overload
def tokenize_encode(
    text: T,
    starts: T,
    tokenizer: int,
    capacity: int,
    *,
    add_special_tokens: bool = True,
    bpe: bool = False,
    tokenizers: bool = False,
    tiktoken: bool = False,
    sentencepiece: bool = False,
    return_offsets: Literal[True],
    bpe_offsets: bool = False,
    kernel: str | None = None,
    out: T | tuple[T, ...] | None = None,
) -> tuple[T, T, T]:
    """The token ids of texts."""
