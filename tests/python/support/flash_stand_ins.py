"""Attention in float64 with the arguments, the results and the conventions of the FlashAttention packages.

Each function refuses arguments that its adapter never gives, so that one that arrives in another place is seen.
"""

import types

import torch
from library_signatures import stand_in

UNUSED = {
    "dropout_p": 0.0,
    "deterministic": False,
    "rotary_interleaved": True,
    "attention_chunk": 0,
    "sm_margin": 0,
    "cp_world_size": 1,
    "cp_rank": 0,
}


def one(q, k, v, scale, causal, window, softcap, slopes, sinks, empty):
    """Output (n, h, d) and lse (h, n) of one sequence in q's dtype. `empty`: the lse of rows without a key, of NaN too."""
    n, m, group = q.shape[0], k.shape[0], q.shape[1] // max(k.shape[1], 1)
    dtype, q = q.dtype, q.double()
    k, v = (t.double().repeat_interleave(group, 1) for t in (k, v))
    z = torch.einsum("nhd,mhd->hnm", q, k) * scale
    z = softcap * torch.tanh(z / softcap) if softcap else z
    distance = torch.arange(n)[:, None] + m - n - torch.arange(m)
    left, right = window[0], 0 if causal else window[1]
    seen = torch.ones(n, m, dtype=torch.bool)
    seen = seen & (distance <= left) if left >= 0 else seen
    seen = seen & (-distance <= right) if right >= 0 else seen
    z = z if slopes is None else z - slopes.double()[:, None, None] * distance.abs()
    z = z.masked_fill(~seen, -torch.inf)
    lse = torch.logsumexp(z, -1) if m else torch.full((q.shape[1], n), -torch.inf, dtype=torch.float64)
    if sinks is not None:
        some = lse != -torch.inf
        lse = torch.where(some, torch.logaddexp(lse, sinks.double()[:, None].expand_as(lse)), lse)
    p = torch.exp(z - lse.masked_fill(lse == -torch.inf, 0)[..., None]).masked_fill(z == -torch.inf, 0)
    output = torch.where(p[..., None] == 0, 0.0, p[..., None] * v.movedim(1, 0)[:, None]).sum(2)
    lse = lse.masked_fill(lse.isinf() | lse.isnan(), empty)
    return output.transpose(0, 1).to(dtype), lse.float()


def packed(q, sequences, how):
    """Output (total, h, d) and lse (h, total) of packed queries; sequences: (first, end, keys, values) each."""
    output = torch.full((*q.shape[:2], sequences[0][3].shape[-1]), 7.0, dtype=q.dtype)
    lse = torch.full((q.shape[1], q.shape[0]), 7.0)
    for first, end, k, v in sequences:
        output[first:end], lse[:, first:end] = one(q[first:end], k, v, *how)
    return output, lse


def with_table(cache, table, used):
    pages = -(-used // cache.shape[1])
    return cache[table[:pages].long()].flatten(0, 1)[:used]


def sequences_of(a, cu_q, key, value, offsets, used, table):
    for index in (cu_q, offsets, used, table):
        assert index is None or (index.dtype == torch.int32 and index.is_contiguous())
    found = []
    for s in range(cu_q.shape[0] - 1):
        first, end = cu_q[s].item(), cu_q[s + 1].item()
        if table is None:
            run = slice(offsets[s].item(), offsets[s + 1].item())
            k, v = key[run], value[run]
        else:
            k, v = (with_table(cache, table[s], used[s].item()) for cache in (key, value))
        longest = a.get("max_seqlen_k")
        assert end - first <= a["max_seqlen_q"] and (longest is None or k.shape[0] <= longest)
        found.append((first, end, k, v))
    return found


def how_of(a, empty):
    left, right = a.get("window_size") or (-1, -1)
    unused = {k: v for k, v in a.items() if k in UNUSED and v != UNUSED[k]}
    assert not unused, unused
    slopes, sinks = a.get("alibi_slopes"), a.get("s_aux")
    assert slopes is None or (slopes.dtype == torch.float32 and slopes.is_contiguous())
    assert sinks is None or (sinks.dtype == torch.bfloat16 and sinks.is_contiguous())
    assert a["softmax_scale"] > 0
    return a["softmax_scale"], a["causal"], (left, right), a["softcap"], slopes, sinks, empty


def dense(a, empty):
    found = [one(*x, *how_of(a, empty)) for x in zip(a["q"], a["k"], a["v"], strict=True)]
    output, lse = (torch.stack(x) for x in zip(*found, strict=True))
    return (output, lse, None) if a["return_attn_probs"] else output


def swapped(q, keys, count, longest, whole):
    """FlashAttention 2 makes rows of grouped heads where it is told that sequences have one query: q must be (count, h, d)."""
    if longest == 1 and q.shape[1] > keys.shape[-2] and whole:
        q.reshape(count, keys.shape[-2], q.shape[1] // keys.shape[-2], q.shape[2])


def varlen(a, empty):
    if empty > 0:  # release 2
        whole = a["alibi_slopes"] is None and tuple(a["window_size"] or (-1, -1)) == (-1, -1)
        swapped(a["q"], a["k"], a["cu_seqlens_q"].shape[0] - 1, a["max_seqlen_q"], whole)
    table, used = a.get("block_table"), a.get("seqused_k")
    offsets = a["cu_seqlens_k"]
    assert (table is None) == (used is None) or used is None
    if table is not None and used is None:
        used = offsets.diff()
    found = packed(a["q"], sequences_of(a, a["cu_seqlens_q"], a["k"], a["v"], offsets, used, table), how_of(a, empty))
    if "return_softmax_lse" in a:
        return found if a["return_softmax_lse"] else found[0]
    return (*found, None) if a["return_attn_probs"] else found[0]


def kvcache_2(a):
    b, n = a["q"].shape[:2]
    a["max_seqlen_q"] = n
    cu_q = torch.arange(0, (b + 1) * n, n, dtype=torch.int32)
    every = sequences_of(a, cu_q, a["k_cache"], a["v_cache"], None, a["cache_seqlens"], a["block_table"])
    output, lse = packed(a["q"].flatten(0, 1), every, how_of(a, torch.inf))
    output = output.unflatten(0, (b, n))
    return (output, lse.unflatten(1, (b, n)).transpose(0, 1)) if a["return_softmax_lse"] else output


def kvcache_3(a):
    every = sequences_of(a, a["cu_seqlens_q"], a["k_cache"], a["v_cache"], None, a["cache_seqlens"], a["page_table"])
    found = packed(a["q"], every, how_of(a, -torch.inf))
    return (*found, None, None) if a["return_softmax_lse"] else found[0]


def vllm(a):
    assert a["fa_version"] in (2, 3) and (a["cu_seqlens_k"] is None) != (a["seqused_k"] is None)
    assert (a["alibi_slopes"] is None or a["fa_version"] == 2) and (a["s_aux"] is None or a["fa_version"] == 3)
    assert a["window_size"] is None or isinstance(a["window_size"], list)
    return varlen(a, torch.inf if a["fa_version"] == 2 else -torch.inf)


def cute_how(a):
    """FlashAttention 4: None is a side of a window that hides nothing; sinks are in the output and in the lse."""
    assert all(side is None or side >= 0 for side in a["window_size"])
    window = [-1 if side is None else side for side in a["window_size"]]
    sinks = a["learnable_sink"]
    assert sinks is None or sinks.is_contiguous()
    return a["softmax_scale"], a["causal"], window, a["softcap"], None, sinks, -torch.inf


def cute_dense(a):
    found = [one(*x, *cute_how(a)) for x in zip(a["q"], a["k"], a["v"], strict=True)]
    output, lse = (torch.stack(x) for x in zip(*found, strict=True))
    return output, lse if a["return_lse"] else None


def cute_varlen(a):
    assert (a["page_table"] is None) == (a["seqused_k"] is None) != (a["cu_seqlens_k"] is None)
    places = a["cu_seqlens_q"], a["k"], a["v"], a["cu_seqlens_k"], a["seqused_k"], a["page_table"]
    output, lse = packed(a["q"], sequences_of(a, *places), cute_how(a))
    return output, lse if a["return_lse"] else None


def flash_mla(a):
    assert a["tile_scheduler_metadata"] == "new" and a["k_cache"].shape[2] == 1 and not a["causal"]
    assert a["block_table"].dtype == a["cache_seqlens"].dtype == torch.int32
    outputs, sums = [], []
    for q, table, used in zip(a["q"], a["block_table"], a["cache_seqlens"].tolist(), strict=True):
        k = with_table(a["k_cache"], table, used)
        how = (a["softmax_scale"], False, (-1, -1), 0.0, None, None, 7.0)
        output, lse = one(q, k, k[..., : a["head_dim_v"]], *how)
        outputs.append(output if used else torch.full_like(output, 7.0))
        sums.append(lse)
    return torch.stack(outputs), torch.stack(sums)


def _module(name, **functions):
    module = types.ModuleType(name)
    for function, body in functions.items():
        setattr(module, function, stand_in(f"{name}:{function}", body))
    return module


def modules():
    """Name to stand-in of every module that an adapter imports."""
    vllm_name = "vllm.vllm_flash_attn.flash_attn_interface"
    found = [
        _module(
            "flash_attn",
            flash_attn_func=lambda a: dense(a, torch.inf),
            flash_attn_varlen_func=lambda a: varlen(a, torch.inf),
            flash_attn_with_kvcache=kvcache_2,
        ),
        _module(
            "flash_attn_interface",
            flash_attn_func=lambda a: dense(a, -torch.inf),
            flash_attn_varlen_func=lambda a: varlen(a, -torch.inf),
            flash_attn_with_kvcache=kvcache_3,
        ),
        _module("flash_attn.cute", flash_attn_func=cute_dense, flash_attn_varlen_func=cute_varlen),
        _module(vllm_name, flash_attn_varlen_func=vllm),
        _module("flash_mla", flash_mla_with_kvcache=flash_mla),
        _module("vllm.third_party.flashmla.flash_mla_interface", flash_mla_with_kvcache=flash_mla),
    ]
    for module in found[-2:]:
        module.get_mla_metadata = lambda *given, **named: ("new", None)
    names = ("vllm", "vllm.vllm_flash_attn", "vllm.third_party", "vllm.third_party.flashmla")
    packages = [types.ModuleType(n) for n in names]
    return {m.__name__: m for m in (*packages, *found)}
