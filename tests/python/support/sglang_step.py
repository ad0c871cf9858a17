"""A step of SGLang's attention as tensors: what its runner passes to a backend, and what the result must be, in float64."""

import contextlib
import importlib
import itertools
import types

import torch

HEADS, KV_HEADS, SIZE = 8, 2, 64
SCALES = (0.5, 0.25)


@contextlib.contextmanager
def one_rank(real):
    """What a server publishes before it makes a backend; nothing where SGLang is not real."""
    if not real:
        yield
        return
    with importlib.import_module("sglang.srt.runtime_context").get_parallel().override(attn_dcp_size=1):
        yield


class Pool:
    """The way of SGLang's pools for keys and values, and, with a window pool, of its pools for layers with windows."""

    def __init__(self, slots, dtype, heads_first=0, split=None):
        shape = (slots, KV_HEADS, SIZE)
        self.dtype = dtype
        self.buffers = [torch.randn(shape).to(dtype) for _ in range(2)]
        if heads_first:
            self.buffers = [
                one.view(-1, heads_first, KV_HEADS, SIZE).transpose(1, 2).contiguous() for one in self.buffers
            ]
        self.heads_first = heads_first
        if split is not None:
            self.swa_layer_nums, self.layers_mapping = 1, {0: (0, True), 1: (0, False)}
            self.full_to_swa_index_mapping = split

    def translate_loc_from_full_to_swa(self, kv_indices):
        return self.full_to_swa_index_mapping[kv_indices]

    def rows(self):
        if not self.heads_first:
            return self.buffers
        return [one.transpose(1, 2).reshape(-1, KV_HEADS, SIZE) for one in self.buffers]

    def get_kv_buffer(self, layer_id):
        return tuple(self.buffers)

    def set_kv_buffer(self, layer, loc_info, cache_k, cache_v, k_scale=None, v_scale=None):
        windowed = hasattr(self, "layers_mapping") and self.layers_mapping[layer.layer_id][1]
        place = loc_info.swa_loc if windowed else loc_info.loc
        for buffer, new, scale in zip(self.buffers, (cache_k, cache_v), (k_scale, v_scale), strict=True):
            if new.dtype != self.dtype and scale is not None:
                new = new / scale
            if self.heads_first:
                buffer[place // self.heads_first, :, place % self.heads_first] = new.to(self.dtype)
            else:
                buffer[place] = new.to(self.dtype)


def layer_of(kind, layer_id=0, **options):
    """The fields of SGLang's RadixAttention that a backend reads."""
    given = {
        "tp_q_head_num": HEADS, "tp_k_head_num": KV_HEADS, "tp_v_head_num": KV_HEADS, "head_dim": SIZE,
        "qk_head_dim": SIZE, "v_head_dim": SIZE, "scaling": 0.125, "layer_id": layer_id, "logit_cap": 0.0,
        "sliding_window_size": -1, "is_cross_attention": False, "use_irope": False, "k_scale": None, "v_scale": None,
        "attn_type": kind.DECODER, "pos_encoding_mode": "NONE", "logit_capping_method": "tanh",
        "xai_temperature_len": -1,
    }  # fmt: skip
    return types.SimpleNamespace(**(given | options))


class Step:
    """A batch of requests, (keys before this step, new tokens) each, with SGLang's tensors for it."""

    def __init__(
        self, plugin, requests, page=1, dtype=torch.bfloat16, stored=None, heads_first=False, split=False, device="cpu",
        context=256,
    ):  # fmt: skip
        torch.manual_seed(1)
        self.plugin, self.requests, self.page, self.stored = plugin, requests, page, stored
        self.lengths = [past + new for past, new in requests]
        self.context = context
        pages = [-(-length // page) for length in self.lengths]
        total = (sum(pages) + 6) * page
        numbers = iter((torch.randperm(sum(pages) + 4) + 1).tolist())  # page 0 is SGLang's for padding
        self.slots = torch.zeros(len(requests) + 3, context, dtype=torch.int32)
        self.rows = (torch.randperm(len(requests)) + 1).to(torch.int64)
        for row, count in zip(self.rows.tolist(), pages, strict=True):
            own = torch.tensor(list(itertools.islice(numbers, count)), dtype=torch.int32)
            self.slots[row, : count * page] = (own[:, None] * page + torch.arange(page, dtype=torch.int32)).flatten()
        self.window_slots = None
        if split:  # another order of pages
            order = torch.cat([torch.zeros(1, dtype=torch.int64), torch.randperm(total // page - 1) + 1])
            self.window_slots = (order[:, None] * page + torch.arange(page)).flatten()
        self.pool = Pool(total, stored or dtype, page if heads_first else 0, self.window_slots)
        self.tokens = sum(new for _, new in requests)
        self.query = torch.randn(self.tokens, HEADS * SIZE).to(dtype)
        self.key, self.value = (torch.randn(self.tokens, KV_HEADS, SIZE).to(dtype) for _ in range(2))
        self.device = torch.device(device)
        for name in ("slots", "rows", "query", "key", "value"):
            setattr(self, name, getattr(self, name).to(device))
        self.pool.buffers = [one.to(device) for one in self.pool.buffers]
        if split:
            self.pool.full_to_swa_index_mapping = self.window_slots.to(device)

    def runner(self, **options):
        model = {"is_encoder_decoder": False, "context_len": self.context, "head_dim": SIZE, "kv_lora_rank": None}
        given = {
            "token_to_kv_pool": self.pool, "page_size": self.page, "device": self.device, "use_mla_backend": False,
            "req_to_token_pool": types.SimpleNamespace(req_to_token=self.slots), "dtype": self.query.dtype,
            "kv_cache_dtype": self.stored or self.query.dtype, "model_config": types.SimpleNamespace(**model),
        }  # fmt: skip
        return types.SimpleNamespace(**(given | options))

    def batch(self, mode=None, mirrored=True, padding=0):
        """padding: requests that a graph has besides."""
        modes = self.plugin.mode
        if mode is None:
            mode = modes.DECODE if all(new == 1 and past for past, new in self.requests) else modes.EXTEND
        new = [new for _, new in self.requests]
        lengths = torch.tensor([*self.lengths, *[1] * padding])
        rows = torch.cat([self.rows, self.rows.new_zeros(padding)])
        return types.SimpleNamespace(
            forward_mode=mode, batch_size=len(lengths), seq_lens=lengths.to(self.device), req_pool_indices=rows,
            seq_lens_cpu=lengths if mirrored else None, seq_lens_sum=int(lengths.sum()), out_cache_loc=self.places(),
            extend_seq_lens=torch.tensor(new, dtype=torch.int32, device=self.device),
            extend_seq_lens_cpu=new if mirrored else None, spec_info=None,
            extend_prefix_lens_cpu=[past for past, _ in self.requests] if mirrored else None,
        )  # fmt: skip

    def places(self):
        at = [
            (r, past + i) for r, (past, new) in zip(self.rows.tolist(), self.requests, strict=True) for i in range(new)
        ]
        rows, columns = torch.tensor(at).T
        return self.slots[rows.to(self.device), columns.to(self.device)].to(torch.int64)

    def run(self, backend=None, batch=None, captured=False, layer_id=0, sinks=None, **options):
        backend = backend or self.plugin.attention.LayerZeroBackend(self.runner())
        batch = batch or self.batch()
        scales = dict(zip(("k_scale", "v_scale"), map(torch.tensor, SCALES), strict=True)) if self.stored else {}
        scales = {name: one.to(self.device) for name, one in scales.items()}
        layer = layer_of(self.plugin.kind, layer_id, **(scales | options))
        if not captured:
            backend.init_forward_metadata(batch)
        given = {} if sinks is None else {"sinks": sinks}
        return backend.forward(self.query, self.key, self.value, layer, batch, **given)

    def keys(self, index, windowed=False):
        """Keys and values (length, kv heads, size) in float64, read back from the memory."""
        slots = self.slots[self.rows[index], : self.lengths[index]].long()
        if windowed:
            slots = self.pool.translate_loc_from_full_to_swa(slots)
        scales = SCALES if self.stored is not None else (1.0, 1.0)
        return tuple(one[slots].double() * scale for one, scale in zip(self.pool.rows(), scales, strict=True))

    def expected(self, sliding_window_size=-1, logit_cap=0.0, sinks=None, attn_type=None, layer_id=0):
        found, begin = [], 0
        causal = attn_type is None or attn_type.value == "decoder"
        windowed = self.window_slots is not None and layer_id == 0
        for index, (past, new) in enumerate(self.requests):
            query = self.query[begin : begin + new].view(new, HEADS, SIZE).double()
            begin += new
            key, value = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in self.keys(index, windowed))
            logits = torch.einsum("qhd,khd->hqk", query, key) * 0.125
            if logit_cap:
                logits = logit_cap * torch.tanh(logits / logit_cap)
            distance = torch.arange(past, past + new)[:, None] - torch.arange(past + new)
            hidden = (distance < 0) & causal
            if sliding_window_size > -1:
                hidden |= distance > sliding_window_size
            logits = logits.masked_fill(hidden.to(self.device), -torch.inf)
            if sinks is not None:
                logits = torch.cat([logits, sinks.double()[:, None, None].expand(-1, new, 1)], -1)
            found.append(torch.einsum("hqk,khd->qhd", logits.softmax(-1)[..., : past + new], value).flatten(1))
        return torch.cat(found)

    def check(self, output=None, **options):
        output = self.run(**options) if output is None else output
        torch.testing.assert_close(output[: self.tokens].double(), self.expected(**options), atol=2e-2, rtol=2e-2)
