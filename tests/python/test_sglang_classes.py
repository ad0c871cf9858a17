"""LayerZero's backend for SGLang with SGLang's own classes and tensors on the CPU, next to SGLang's torch_native backend.

Needs SGLang; test_sglang_installed.py runs this file with it.
"""

import importlib
import types

import pytest

torch = pytest.importorskip("torch")

from sglang_step import one_rank  # noqa: E402

try:
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
except ImportError as error:
    pytest.skip(f"needs sglang; test_sglang_installed.py runs this file with it ({error})", allow_module_level=True)

HEADS, KV_HEADS, SIZE, CONTEXT = 8, 2, 64, 256
# Of three requests: a prompt, more of the prompt after a prefix, then tokens one by one.
STEPS = [[5, 33, 17], [20, 1, 16], [1, 1, 1], [1, 1, 1]]
PAST = [[0, 0, 0], [5, 33, 17], [25, 34, 33], [26, 35, 34]]


@pytest.fixture(autouse=True)
def published():
    with one_rank(True):
        yield


def runner_of(page, split):
    """SGLang's ModelRunner, as far as a backend reads it, with SGLang's own pools. split: layer 0 has its own pool."""
    count, order = 640, torch.Generator().manual_seed(2)
    shared = {"page_size": page, "dtype": torch.bfloat16, "head_num": KV_HEADS, "head_dim": SIZE, "device": "cpu"}
    if split:
        pool = SWAKVPool(
            count, count, swa_attention_layer_ids=[0], full_attention_layer_ids=[1], **shared, enable_memory_saver=False,
        )  # fmt: skip
        pages = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randperm(count // page, generator=order) + 1])
        pool.register_mapping((pages[:, None] * page + torch.arange(page)).flatten())
    else:
        pool = MHATokenToKVPool(count, layer_num=2, **shared, enable_memory_saver=False)
    model = types.SimpleNamespace(is_encoder_decoder=False, context_len=CONTEXT, head_dim=SIZE, kv_lora_rank=None)
    return types.SimpleNamespace(
        token_to_kv_pool=pool, req_to_token_pool=ReqToTokenPool(4, CONTEXT, "cpu", False), page_size=page,
        device="cpu", dtype=torch.bfloat16, kv_cache_dtype=torch.bfloat16, use_mla_backend=False, model_config=model,
    )  # fmt: skip


def batch_of(runner, new, past):
    lengths = [sum(pair) for pair in zip(new, past, strict=True)]
    rows = torch.tensor([2, 4, 1])
    table = runner.req_to_token_pool.req_to_token
    slots = [table[row, begin:end] for row, begin, end in zip(rows, past, lengths, strict=True)]
    given = {
        "forward_mode": ForwardMode.EXTEND, "batch_size": 3, "input_ids": torch.zeros(sum(new), dtype=torch.int64),
        "req_pool_indices": rows, "seq_lens": torch.tensor(lengths), "out_cache_loc": torch.cat(slots).long(),
        "seq_lens_sum": sum(lengths), "seq_lens_cpu": torch.tensor(lengths),
    }  # fmt: skip
    if past[0] and max(new) == 1:
        return ForwardBatch(**given | {"forward_mode": ForwardMode.DECODE})
    return ForwardBatch(
        **given, extend_seq_lens=torch.tensor(new, dtype=torch.int32), extend_seq_lens_cpu=new,
        extend_prefix_lens=torch.tensor(past, dtype=torch.int32), extend_prefix_lens_cpu=past,
        extend_num_tokens=sum(new),
    )  # fmt: skip


def outputs(name, page, window=-1, split=False):
    """Of each step and layer, by the backend of this name, and the keys of both layers then; layer 0 has the window."""
    torch.manual_seed(0)
    order = torch.Generator().manual_seed(1)
    runner = runner_of(page, split)
    pages = iter((torch.randperm(640 // page, generator=order) + 1).tolist())
    for row in (1, 2, 4):
        for begin in range(0, 64, page):
            first = next(pages) * page
            runner.req_to_token_pool.req_to_token[row, begin : begin + page] = torch.arange(first, first + page)
    backend = attention_registry.ATTENTION_BACKENDS[name](runner)
    layers = [
        RadixAttention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, layer_id, sliding_window_size=size)
        for layer_id, size in enumerate((window, -1))
    ]
    found = []
    for new, past in zip(STEPS, PAST, strict=True):
        batch = batch_of(runner, new, past)
        with forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata(batch)
            for layer in layers:
                query = torch.randn(sum(new), HEADS * SIZE).bfloat16()
                key, value = torch.randn(2, sum(new), KV_HEADS * SIZE).bfloat16()
                found.append(layer(query, key, value, batch).clone())
    return found, [runner.token_to_kv_pool.get_kv_buffer(layer_id)[0].clone() for layer_id in (0, 1)]


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("kind", ["plain", "window", "window_pool"])
def test_layers_give_what_torch_native_gives(kind, page):
    """torch_native reads a pool for windows at the slots of the whole pool, so it has one pool for both layers here."""
    importlib.import_module("layerzero.integrations.sglang").register()
    window = -1 if kind == "plain" else 11
    own, own_keys = outputs("layerzero", page, window, split=kind == "window_pool")
    theirs, their_keys = outputs("torch_native", page, window)
    assert len(own) == 2 * len(STEPS) and own_keys[1].any() and torch.equal(own_keys[1], their_keys[1])
    assert torch.equal(own_keys[0], their_keys[0]) == (kind != "window_pool")
    for mine, native in zip(own, theirs, strict=True):
        torch.testing.assert_close(mine.view_as(native).float(), native.float(), atol=2e-2, rtol=2e-2)
