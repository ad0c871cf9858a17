"""A step of vLLM's attention as tensors: what its runner passes to a backend, and what the result must be."""

import itertools
import types

import torch

HEADS, KV_HEADS, SIZE, PAGE = 8, 2, 64, 16


class Step:
    """A batch of requests, (keys before this step, new tokens) each, with vLLM's tensors for it."""

    def __init__(
        self, plugin, requests, dtype=torch.bfloat16, stored=None, heads_first=False, shared=0, padding=0,
        device="cpu",
    ):  # fmt: skip
        torch.manual_seed(1)
        self.plugin, self.requests, self.shared = plugin, requests, shared
        lengths = [past + new for past, new in requests]
        pages = [-(-length // PAGE) for length in lengths]
        self.width = max(pages) + 3  # vLLM's tables are wider than a step needs
        numbers = iter(torch.randperm(sum(pages) + 5).tolist())
        self.table = torch.full((len(requests), self.width), -1, dtype=torch.int32)
        for row, count in enumerate(pages):
            common = self.table[0, : shared // PAGE] if row else []
            own = [*map(int, common), *itertools.islice(numbers, count - len(common))]
            self.table[row, :count] = torch.tensor(own, dtype=torch.int32)
        self.starts = torch.tensor([0, *itertools.accumulate(new for _, new in requests)], dtype=torch.int32)
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self.tokens = int(self.starts[-1]) + padding
        shape = (sum(pages) + 5, 2, PAGE, KV_HEADS, SIZE)
        memory = torch.randn(shape).to(stored or dtype)
        if stored is not None:
            memory = memory.view(torch.uint8)
        if heads_first:
            memory = memory.transpose(2, 3).contiguous().transpose(2, 3)
        self.memory, self.stored = memory, stored
        self.query = torch.randn(self.tokens, HEADS, SIZE).to(dtype)
        self.key, self.value = (torch.randn(self.tokens, KV_HEADS, SIZE).to(dtype) for _ in range(2))
        self.layer = types.SimpleNamespace(_k_scale=torch.tensor(0.5), _v_scale=torch.tensor(0.25))
        self.device = torch.device(device)
        for name, one in vars(self).items():
            if isinstance(one, torch.Tensor):
                setattr(self, name, on(one, device))
        for name, one in vars(self.layer).items():
            setattr(self.layer, name, one.to(device))

    def slots(self):
        positions = [(row, past + i) for row, (past, new) in enumerate(self.requests) for i in range(new)]
        table = self.table.tolist()
        return torch.tensor([table[r][p // PAGE] * PAGE + p % PAGE for r, p in positions], device=self.device)

    def common(self, bounds=True):
        new = self.starts.diff()
        return self.plugin.vllm.CommonAttentionMetadata(
            query_start_loc=self.starts,
            query_start_loc_cpu=self.starts.cpu(),
            seq_lens=self.lengths,
            num_reqs=len(self.requests),
            num_actual_tokens=self.tokens,
            max_query_len=int(new.max()),
            max_seq_len=int(self.lengths.max()),
            block_table_tensor=self.table,
            slot_mapping=self.slots(),
            seq_lens_cpu_upper_bound=self.lengths.cpu() if bounds else None,
        )

    def built(self, captured=False, bounds=True):
        spec = types.SimpleNamespace(block_size=PAGE)
        parallel = types.SimpleNamespace(decode_context_parallel_size=1)
        config = types.SimpleNamespace(speculative_config=None, parallel_config=parallel)
        builder = self.plugin.metadata.LayerZeroMetadataBuilder(spec, [], config, self.device)
        if captured:
            return builder.build_for_cudagraph_capture(self.common())
        return builder.build(self.shared, self.common(bounds))

    def run(self, metadata=None, **options):
        sinks = options.pop("sinks", None)
        cache = {None: "auto", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8_e5m2"}[self.stored]
        given = {"scale": 0.125, "num_kv_heads": KV_HEADS, "kv_cache_dtype": cache, "sinks": sinks} | options
        with torch.device(self.device):  # as vLLM builds a model
            layer = self.plugin.attention.LayerZeroImpl(HEADS, SIZE, **given)
        layer.do_kv_cache_update(self.layer, self.key, self.value, self.memory, self.slots())
        output = torch.full_like(self.query, torch.nan)
        metadata = metadata or self.built()
        assert layer.forward(self.layer, self.query, self.key, self.value, self.memory, metadata, output) is output
        return output

    def keys(self, row):
        """Keys and values (length, kv heads, size) in float32, read back from the memory."""
        memory = self.memory if self.stored is None else self.memory.view(self.stored)
        length = int(self.lengths[row])
        pages = memory[self.table[row, : -(-length // PAGE)].long()].float()
        both = pages.transpose(1, 2).flatten(0, 1)[:length]
        units = (0.5, 0.25) if self.stored is not None else (1, 1)
        return both[:, 0] * units[0], both[:, 1] * units[1]

    def expected(self, alibi_slopes=None, sliding_window=None, logits_soft_cap=None, sinks=None):
        found = []
        for row, (past, new) in enumerate(self.requests):
            begin = int(self.starts[row])
            query = self.query[begin : begin + new].float()
            key, value = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in self.keys(row))
            logits = torch.einsum("qhd,khd->hqk", query, key) * 0.125
            if logits_soft_cap:
                logits = logits_soft_cap * torch.tanh(logits / logits_soft_cap)
            distance = torch.arange(past, past + new)[:, None] - torch.arange(past + new)
            distance = distance.to(self.device)
            if alibi_slopes is not None:
                logits = logits - torch.tensor(alibi_slopes, device=self.device)[:, None, None] * distance
            hidden = distance < 0
            if sliding_window is not None:
                hidden |= distance >= sliding_window
            logits = logits.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                logits = torch.cat([logits, sinks.float()[:, None, None].expand(-1, new, 1)], -1)
            weights = logits.softmax(-1)[..., : past + new]
            found.append(torch.einsum("hqk,khd->qhd", weights, value))
        return torch.cat(found)

    def check(self, output=None, **options):
        output = self.run(**options) if output is None else output
        output = output[: int(self.starts[-1])]
        torch.testing.assert_close(output.float(), self.expected(**options), atol=2e-2, rtol=2e-2)


def on(tensor, device):
    """Moved with its strides, which may not be those of its axes' order."""
    moved = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return moved.copy_(tensor)
