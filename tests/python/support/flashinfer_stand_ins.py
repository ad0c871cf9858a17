"""FlashInfer's attention in float64 with its arguments, its results (lse to the base 2) and what it refuses."""

import math
import types

import torch
from flash_stand_ins import one, packed, with_table
from library_signatures import stand_in, stand_in_class

LOG2E = math.log2(math.e)
DEFAULTS = (
    "scale_q",
    "scale_k",
    "scale_v",
    "o_dtype",
    "custom_mask",
    "packed_custom_mask",
    "q_scale",
    "k_scale",
    "v_scale",
)


def results(output, lse, a):
    """lse (h, n), natural, to (n, h) to the base 2."""
    return (output, (lse * LOG2E).transpose(0, 1).contiguous()) if a["return_lse"] else output


def how_of(a, causal):
    assert a["pos_encoding_mode"] == "NONE" and all(a.get(name) is None for name in DEFAULTS)
    assert a["sm_scale"] > 0 and a["window_left"] >= -1 and a["logits_soft_cap"] >= 0
    return a["sm_scale"], causal, (a["window_left"], -1), a["logits_soft_cap"], None, None, -math.inf


def _rows(n, length, causal):
    assert not n or (length and (not causal or n <= length)), "a row without a key"


def single_prefill(a):
    assert a["kv_layout"] == "NHD", "the library's kernel for SM90 takes heads for keys and divides by zero"
    q, k, v = (a[name] for name in ("q", "k", "v"))
    _rows(q.shape[0], k.shape[0], a["causal"])
    return results(*one(q, k, v, *how_of(a, a["causal"])), a)


def single_decode(a):
    q, k, v = (a[name] for name in ("q", "k", "v"))
    if a["kv_layout"] == "HND":
        k, v = k.transpose(0, 1), v.transpose(0, 1)
    output, lse = one(q[None], k, v, *how_of(a, True))
    return (output[0], (lse * LOG2E)[:, 0]) if a["return_lse"] else output[0]


def on_host(*tables):
    for table in tables:
        assert table.device.type == "cpu" and table.dtype == torch.int32


def run(own, a):
    queries, keys, how = own.planned
    q, causal = a["q"], how[1]
    assert q.shape[0] == queries[-1]
    sequences = []
    for s, (first, end) in enumerate(zip(queries[:-1], queries[1:], strict=True)):
        k, v = keys(a, s)
        _rows(end - first, k.shape[0], causal)
        sequences.append((first, end, k, v))
    output, lse = packed(q, sequences, how)
    return results(output, lse, a)


def ragged_plan(own, a):
    on_host(a["qo_indptr"], a["kv_indptr"])
    offsets = a["kv_indptr"].tolist()

    def keys(given, s):
        assert (given["k"].shape[1], given["k"].shape[2]) == (a["num_kv_heads"], a["head_dim_qk"])
        return tuple(given[name][offsets[s] : offsets[s + 1]] for name in ("k", "v"))

    return a["qo_indptr"].tolist(), keys, how_of(a, a["causal"])


def _paged_keys(a, indptr, indices, last, size, name):
    on_host(indptr, last)
    assert indices.dtype == torch.int32 and bool((last > 0).all()) and bool((indptr.diff() > 0).all())

    def keys(given, s):
        caches = given[name]
        assert caches[0].shape[1:3] == (size, a["num_kv_heads"])
        table = indices[indptr[s] : indptr[s + 1]]
        used = (table.shape[0] - 1) * size + last[s].item()
        return tuple(with_table(cache, table, used) for cache in caches)

    return keys


def prefill_plan(own, a):
    on_host(a["qo_indptr"])
    tables = (a["paged_kv_indptr"], a["paged_kv_indices"], a["paged_kv_last_page_len"])
    keys = _paged_keys(a, *tables, a["page_size"], "paged_kv_cache")
    return a["qo_indptr"].tolist(), keys, how_of(a, a["causal"])


def decode_plan(own, a):
    keys = _paged_keys(a, a["indptr"], a["indices"], a["last_page_len"], a["page_size"], "paged_kv_cache")
    return list(range(a["last_page_len"].shape[0] + 1)), keys, how_of(a, False)


def mla_plan(own, a):
    on_host(a["qo_indptr"], a["kv_indptr"], a["kv_len_arr"])
    assert not a["causal"] and a["qo_indptr"].tolist() == list(range(a["kv_len_arr"].shape[0] + 1))
    return a


def mla_run(own, a):
    plan, outputs = own.planned, []
    assert not a["return_lse"]
    for s, used in enumerate(plan["kv_len_arr"].tolist()):
        table = plan["kv_indices"][plan["kv_indptr"][s] : plan["kv_indptr"][s + 1]]
        ckv, kpe = (with_table(a[name], table, used)[:, None] for name in ("ckv_cache", "kpe_cache"))
        q, k = torch.cat((a["q_nope"][s], a["q_pe"][s]), -1)[None], torch.cat((ckv, kpe), -1)
        outputs.append(one(q, k, ckv, plan["sm_scale"], False, (-1, -1), 0.0, None, None, -math.inf)[0])
    return torch.cat(outputs)


def xqa(a):
    assert a["kv_layout"] == "NHD" and a["q_len_per_req"] == 1 and a["bmm2_scale"] == 1.0 and a["o_scale"] == 1.0
    outputs = []
    for q, table, used in zip(a["query"], a["block_tables"], a["seq_lens"].tolist(), strict=True):
        k, v = (with_table(cache, table, used) for cache in a["kv_cache"])
        how = (a["bmm1_scale"], True, (a["window_left"], -1), 0.0, None, None, -math.inf)
        outputs.append(one(q[None], k, v, *how)[0] if used else torch.full_like(q[None], 7.0))
    return torch.cat(outputs)


def merge_state(a):
    s = torch.stack((a["s_a"], a["s_b"])).double()
    weights = torch.softmax(s * math.log(2), 0).nan_to_num(0)[..., None]
    output = weights[0] * a["v_a"].double() + weights[1] * a["v_b"].double()
    return output.to(a["v_a"].dtype), torch.logaddexp2(s[0], s[1]).float()


def merge_states(a):
    v, s = a["v"], a["s"].double() * math.log(2)
    assert v.is_contiguous() and a["s"].is_contiguous()
    output = (torch.softmax(s, 1).nan_to_num(0)[..., None] * v.double()).sum(1)
    return output.to(v.dtype), (torch.logsumexp(s, 1) * LOG2E).float()


def modules():
    """Name to stand-in of every module that an adapter imports."""
    root, mla, decode = (types.ModuleType(name) for name in ("flashinfer", "flashinfer.mla", "flashinfer.decode"))
    root.mla, root.decode = mla, decode
    for name, body in (
        ("single_prefill_with_kv_cache", single_prefill),
        ("single_decode_with_kv_cache", single_decode),
        ("merge_state", merge_state),
        ("merge_states", merge_states),
    ):
        setattr(root, name, stand_in(f"flashinfer:{name}", body))
    for name, plan in (
        ("BatchDecodeWithPagedKVCacheWrapper", decode_plan),
        ("BatchPrefillWithPagedKVCacheWrapper", prefill_plan),
        ("BatchPrefillWithRaggedKVCacheWrapper", ragged_plan),
    ):
        setattr(root, name, stand_in_class(f"flashinfer:{name}", plan, run))
    mla.BatchMLAPagedAttentionWrapper = stand_in_class(
        "flashinfer.mla:BatchMLAPagedAttentionWrapper", mla_plan, mla_run
    )
    name = "xqa_batch_decode_with_kv_cache"
    setattr(decode, name, stand_in(f"flashinfer.decode:{name}", xqa))
    return {module.__name__: module for module in (root, mla, decode)}
