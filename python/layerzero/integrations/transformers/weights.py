"""Weights in blocks of few bits for a model's linear layers: those of its GGUF file as they are, or rounded here.

The model's own parameters stay: what steps aside, undo and state_dict use them.
"""

import dataclasses
import warnings
from typing import Any

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, NotInstalledError

_OPS = _layerzero.ops
GROUP = 16  # rows that linear_gguf_prepack puts together
KINDS = ("gguf", "int8", "int4")
_FILE_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclasses.dataclass
class BlockWeight:
    """One weight: rows of GGUF blocks (n, row_bytes) uint8, and the same packed for the kernels."""

    data: torch.Tensor
    format: str
    packed: torch.Tensor

    @staticmethod
    def of(data: torch.Tensor, format: str, columns: int) -> "BlockWeight":
        return BlockWeight(data, format, _OPS["linear_gguf_prepack"](data, columns, format))

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes


@dataclasses.dataclass
class BlockLinear:
    """The product with one weight, in place of that with the parameter that it was made of."""

    weight: BlockWeight
    activations: str
    parameter: nn.Parameter

    @staticmethod
    def of(members: dict[str, Any]) -> "BlockLinear | None":
        """What `kernelize(weights=)` put into a linear layer, while the layer has the parameter that it stands for."""
        found = members.get("_layerzero_blocks")
        return found if found is not None and members["_parameters"]["weight"] is found.parameter else None

    def __call__(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        w = self.weight
        return _OPS["linear_gguf"](rows, w.data, w.format, bias, packed=w.packed, activations=self.activations)


def join(weights: list[BlockWeight]) -> dict[str, Any]:
    """Several weights of one format, each of whole groups, as the arguments of one product; they share its memory.

    `weight` tells only how many rows of which size there are: packed is read instead.
    """
    packed = torch.cat([weight.packed for weight in weights])
    begin = 0
    for weight in weights:
        end = begin + weight.packed.shape[0]
        weight.packed = packed[begin:end]
        begin = end
    first = weights[0].data
    shape = torch.zeros(1, first.shape[1], dtype=torch.uint8).expand(sum(w.data.shape[0] for w in weights), -1)
    return {"weight": shape, "packed": packed, "format": weights[0].format}


def _blocks(weight: torch.Tensor) -> torch.Tensor:
    n, k = weight.shape
    if k % 32:
        raise InvalidRequestError(f"weights: wanted rows of a multiple of 32 values, got {k}; leave this layer out")
    return weight.float().reshape(n, k // 32, 32)


def _half_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float16).unsqueeze(-1).view(torch.uint8)


def to_q8_0(weight: torch.Tensor) -> torch.Tensor:
    """Rows of q8_0 blocks: 32 values round(w / d) beside d = amax / 127 in float16."""
    blocks = _blocks(weight)
    d = (blocks.abs().amax(-1) / 127).to(torch.float16).float()
    codes = (blocks / torch.where(d > 0, d, torch.ones_like(d)).unsqueeze(-1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([_half_bytes(d), codes.view(torch.uint8)], -1).flatten(1)


def to_q4_1(weight: torch.Tensor) -> torch.Tensor:
    """Rows of q4_1 blocks: 32 values round((w - m) / d) of 4 bits beside d = (max - min) / 15 and m = min in float16."""
    blocks = _blocks(weight)
    m = blocks.amin(-1).to(torch.float16).float()
    d = ((blocks.amax(-1) - m) / 15).clamp(min=0).to(torch.float16).float()
    scaled = (blocks - m.unsqueeze(-1)) / torch.where(d > 0, d, torch.ones_like(d)).unsqueeze(-1)
    codes = scaled.round().clamp(0, 15).to(torch.uint8)
    return torch.cat([_half_bytes(d), _half_bytes(m), codes[..., :16] | codes[..., 16:] << 4], -1).flatten(1)


def _rounded(weight: torch.Tensor, kind: str) -> BlockWeight:
    data, format = (to_q8_0(weight), "q8_0") if kind == "int8" else (to_q4_1(weight), "q4_1")
    return BlockWeight.of(data, format, weight.shape[1])


def _file_name(name: str) -> str | None:
    """The tensor of a GGUF file that a Transformers module's weight comes from."""
    if name == "lm_head":
        return "output"
    parts = name.split(".layers.")
    if len(parts) != 2:
        return None
    index, _, rest = parts[1].partition(".")
    return f"blk.{index}.{_FILE_NAMES[rest]}" if rest in _FILE_NAMES else None


def _file_tensors(path: str) -> dict[str, tuple[torch.Tensor, str]]:
    try:
        import gguf
    except ImportError as error:
        raise NotInstalledError("weights: reading a .gguf file needs the package gguf: pip install gguf") from error
    tensors = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that is mapped for reading alone, and only read
        for tensor in gguf.GGUFReader(path).tensors:
            format = tensor.tensor_type.name.lower()
            if format in ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k"):
                tensors[tensor.name.removesuffix(".weight")] = (torch.from_numpy(tensor.data), format)
    return tensors


def _halves_apart(data: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head as Transformers rotates them; Llama's files keep the pairs of a rotation side by side."""
    return data.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()


def _from_file(module: nn.Linear, data: torch.Tensor, format: str, head_dim: int) -> torch.Tensor | None:
    """The rows whose values are the module's weight, or None: then the file has something else under this name."""
    weight = module.weight.detach()
    candidates = [data]
    if weight.shape[0] % head_dim == 0 and data.shape[0] == weight.shape[0]:
        candidates.append(_halves_apart(data, weight.shape[0] // head_dim))
    for rows in candidates:
        values = _OPS["dequantize_gguf"](rows, weight.shape[1], format=format)
        if values.shape == weight.shape and torch.equal(values.to(weight.dtype), weight):
            return rows
    return None


def block_weights(
    model: nn.Module, linears: dict[str, nn.Linear], kind: str, left: dict[str, str]
) -> dict[str, BlockWeight]:
    """Module name -> its weight in blocks, for every linear layer that has one; `left` gets the reasons of the others."""
    if kind not in KINDS:
        raise InvalidRequestError(f"weights: wanted one of {', '.join(KINDS)}, got {kind!r}; or leave it out")
    if kind != "gguf":
        fits = {name: module for name, module in linears.items() if module.in_features % 32 == 0}
        left |= {f"{name}: {kind}": "its rows are no multiple of 32 values" for name in linears if name not in fits}
        return {name: _rounded(module.weight.detach(), kind) for name, module in fits.items()}
    path = getattr(model, "_gguf_path", None)
    if path is None:
        raise InvalidRequestError(
            "weights: wanted a model that layerzero.models.gguf.load has read from a .gguf file for 'gguf', got another; "
            "load it from its file, or pass 'int8' or 'int4'"
        )
    tensors = _file_tensors(path)
    tensors.setdefault("output", tensors.get("token_embd", (torch.empty(0, dtype=torch.uint8), "")))
    config: Any = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found = {}
    for name, module in linears.items():
        data, format = tensors.get(_file_name(name) or "", (None, ""))
        rows = None if data is None or data.dim() != 2 else _from_file(module, data, format, head_dim)
        if rows is None:
            left[f"{name}: gguf"] = "the file has no block weight of these values; its own parameter is used"
        else:
            found[name] = BlockWeight.of(rows, format, module.in_features)
    return found


@dataclasses.dataclass
class WeightsReport:
    """What `kernelize(weights=)` did. bytes: packed; the errors are those of the model's logits against its own."""

    kind: str
    activations: str
    layers: int
    bytes: int
    max_logit_error: float
    perplexity_ratio: float  # of text that the model itself would write: exp of the mean KL divergence
    perplexity: tuple[float, float] | None  # of accuracy_ids, before and after

    def __str__(self) -> str:
        text = f"weights: {self.layers} in {self.kind}, activations {self.activations}, {self.bytes / 2**20:.1f} MiB packed"
        text += f"; largest error of a logit {self.max_logit_error:.3g}, perplexity times {self.perplexity_ratio:.4f}"
        return (
            text
            if self.perplexity is None
            else f"{text}, of the given text {self.perplexity[0]:.4g} -> {self.perplexity[1]:.4g}"
        )


def probe_ids(model: nn.Module) -> torch.Tensor:
    """64 ids all over the vocabulary, the same at every call."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, config.vocab_size, (1, 64), generator=generator)


def log_probabilities(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits.float()
    return logits, logits.log_softmax(-1)


def compare(
    before: tuple[torch.Tensor, torch.Tensor], after: tuple[torch.Tensor, torch.Tensor], ids: torch.Tensor | None
) -> tuple[float, float, tuple[float, float] | None]:
    """(largest difference of a logit, exp of the mean KL divergence, perplexities of `ids` if they are a text)."""
    error = (before[0] - after[0]).abs().max().item()
    own, ours = before[1].double(), after[1].double()
    ratio = (own.exp() * (own - ours)).sum(-1).mean().exp().item()
    if ids is None:
        return error, ratio, None

    def perplexity(log_p: torch.Tensor) -> float:
        return (-log_p[:, :-1].gather(-1, ids[:, 1:, None])).mean().exp().item()

    return error, ratio, (perplexity(own), perplexity(ours))
