"""Weights in blocks of few bits for a model's linear layers: those of its GGUF file as they are, or rounded here.

The model keeps its own parameters, for calls that no program serves, for undo and for state_dict. Packed blocks are kept on disk, as
`models/<digest of the file or of the parameters>/<kind>/` next to the converted models, and mapped from there.
"""

import dataclasses
import hashlib
import pathlib
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, UntrustedFileError
from layerzero.host.optional import need
from layerzero.integrations.transformers.run.blocks import BlockWeight
from layerzero.integrations.transformers.run.released import BlockRows, ReleasedParameter
from layerzero.models import packed_file
from layerzero.models.disk_cache import model_folder, not_kept, touch
from layerzero.models.gguf import file_digest
from layerzero.torch.writes import Seen, are_counted

_OPS = _layerzero.ops
Weighted = nn.Linear | nn.Embedding
_VERSION = "1"  # of the packed order and of the rounding: raised when one changes, older entries are then not found
_LEAST_KEPT = 1 << 20  # bytes: smaller blocks are made as fast as they are read
_FILE_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _blocks(weight: torch.Tensor) -> torch.Tensor:
    n, k = weight.shape
    if k % 32:
        raise InvalidRequestError("weights", "rows of a multiple of 32 values", str(k), "leave this layer out")
    return weight.float().reshape(n, k // 32, 32)


def _half_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float16).unsqueeze(-1).view(torch.uint8)


def to_q8_0(weight: torch.Tensor) -> torch.Tensor:
    """Rows of q8_0 blocks: 32 values round(w / d) with d = amax / 127 in float16."""
    blocks = _blocks(weight)
    d = (blocks.abs().amax(-1) / 127).to(torch.float16).float()
    codes = (blocks / torch.where(d > 0, d, torch.ones_like(d)).unsqueeze(-1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([_half_bytes(d), codes.view(torch.uint8)], -1).flatten(1)


def to_q4_1(weight: torch.Tensor) -> torch.Tensor:
    """Rows of q4_1 blocks: 32 values round((w - m) / d) of 4 bits with d = (max - min) / 15 and m = min in float16."""
    blocks = _blocks(weight)
    m = blocks.amin(-1).to(torch.float16).float()
    d = ((blocks.amax(-1) - m) / 15).clamp(min=0).to(torch.float16).float()
    scaled = (blocks - m.unsqueeze(-1)) / torch.where(d > 0, d, torch.ones_like(d)).unsqueeze(-1)
    codes = scaled.round().clamp(0, 15).to(torch.uint8)
    return torch.cat([_half_bytes(d), _half_bytes(m), codes[..., :16] | codes[..., 16:] << 4], -1).flatten(1)


def _rounded(weight: torch.Tensor, kind: str) -> BlockWeight:
    if kind == "bf16":
        return BlockWeight.rounded(weight)
    data, format = (to_q8_0(weight), "q8_0") if kind == "int8" else (to_q4_1(weight), "q4_1")
    return BlockWeight.of(data, format, weight.shape[1])


def _file_name(name: str) -> str | None:
    """The tensor of a GGUF file that a Transformers module's weight comes from."""
    if name.endswith("embed_tokens"):
        return "token_embd"
    if name == "lm_head":
        return "output"
    parts = name.split(".layers.")
    if len(parts) != 2:
        return None
    index, _, rest = parts[1].partition(".")
    return f"blk.{index}.{_FILE_NAMES[rest]}" if rest in _FILE_NAMES else None


def _file_tensors(path: str) -> dict[str, tuple[torch.Tensor, str]]:
    need("gguf", what="weights='gguf'")
    import gguf

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


def _from_file(module: Weighted, data: torch.Tensor, format: str, head_dim: int) -> torch.Tensor | None:
    """The rows of blocks that have the values of the module's weight; None if the file has another tensor under this name."""
    weight = module.weight.detach()
    data = data.to(weight.device)
    candidates = [data]
    if weight.shape[0] % head_dim == 0 and data.shape[0] == weight.shape[0]:
        candidates.append(_halves_apart(data, weight.shape[0] // head_dim))
    for rows in candidates:
        values = _OPS["dequantize_gguf"](rows, weight.shape[1], format=format)
        if values.shape == weight.shape and torch.equal(values.to(weight.dtype), weight):
            return rows
    return None


def _from_its_file(model: nn.Module, linears: Mapping[str, Weighted]) -> dict[str, BlockWeight]:
    tensors = _file_tensors(_path_of(model))
    tensors.setdefault("output", tensors.get("token_embd", (torch.empty(0, dtype=torch.uint8), "")))
    config: Any = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found = {}
    for name, module in linears.items():
        data, format = tensors.get(_file_name(name) or "", (None, ""))
        rows = None if data is None or data.dim() != 2 else _from_file(module, data, format, head_dim)
        if rows is not None:
            found[name] = BlockWeight.of(rows, format, module.weight.shape[1])
    return found


def _path_of(model: nn.Module) -> str:
    path = getattr(model, "_gguf_path", None)
    if path is None:
        wanted = "a model that layerzero.models.gguf.load has read from a .gguf file for 'gguf'"
        raise InvalidRequestError("weights", wanted, "another", "load it from its file, or pass 'int8' or 'int4'")
    return path


def _digest_of(linears: Mapping[str, Weighted]) -> str:
    """Digest of names, dtypes, shapes and bytes of all weights."""

    def one(weight: torch.Tensor) -> bytes:
        return hashlib.sha256(weight.detach().cpu().contiguous().view(torch.uint8).numpy()).digest()  # type: ignore[arg-type]

    digest = hashlib.sha256()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for (name, module), own in zip(
            linears.items(), pool.map(one, (m.weight for m in linears.values())), strict=True
        ):
            digest.update(f"{name} {module.weight.dtype} {tuple(module.weight.shape)} ".encode() + own)
    return digest.hexdigest()


def _entry(model: nn.Module, linears: Mapping[str, Weighted], kind: str) -> pathlib.Path:
    """The file of the cache for these blocks. Blocks of a GGUF file belong to the parameters that they were compared with."""
    own = _digest_of(linears)
    source, name = (file_digest(_path_of(model)), f"gguf-{own[:16]}") if kind == "gguf" else (own, kind)
    return model_folder(source, f"{name}-v{_VERSION}") / "blocks.safetensors"


def _read_entry(path: pathlib.Path, about: dict[str, Any]) -> dict[str, BlockWeight] | None:
    packed = packed_file.read(path, about)
    if packed is None:
        return None
    touch(path.parent)
    found = {}
    for key, groups in packed.items():
        name, format, rows, row_bytes = key.rsplit("|", 3)
        found[name] = BlockWeight(groups, format, int(rows), int(row_bytes))
    return found


@dataclasses.dataclass
class Blocks:
    """Module name -> its weight in blocks; whether they come from the disk's cache, and why they are not kept there."""

    weights: dict[str, BlockWeight]
    cached: bool = False
    why_not_kept: str = ""
    seconds: float = 0.0


def _on_host(linears: Mapping[str, Weighted]) -> bool:
    return all(module.weight.device.type == "cpu" for module in linears.values())


def _kept(
    model: nn.Module, linears: Mapping[str, Weighted], kind: str, make: Callable[[], dict[str, BlockWeight]]
) -> Blocks:
    """Returns the blocks from the cache, or makes them and writes them to it; later processes map the file.

    Blocks on a device are made each time, which is faster than reading a file.
    """
    if not _on_host(linears):
        return Blocks(make(), why_not_kept="they are made on the model's device")
    try:
        path = _entry(model, linears, kind)
    except UntrustedFileError as error:
        not_kept("a model's packed weights", error)
        return Blocks(make(), why_not_kept=str(error))
    about = {"version": _VERSION, "entry": f"{path.parent.parent.name}/{path.parent.name}"}
    found = _read_entry(path, about)
    if found is not None:
        return Blocks(found, cached=True)
    made = make()
    if sum(weight.nbytes for weight in made.values()) < _LEAST_KEPT:
        return Blocks(made, why_not_kept="they are few")
    keys = {f"{name}|{w.format}|{w.rows}|{w.row_bytes}": w.packed for name, w in made.items()}
    try:
        packed_file.write(path, keys, about)
    except OSError as error:
        not_kept("a model's packed weights", error)
        return Blocks(made, why_not_kept=str(error))
    return Blocks(_read_entry(path, about) or made)  # memory of a mapped file can be reclaimed; that of `made` is freed


def block_weights(model: nn.Module, linears: Mapping[str, Weighted], kind: str, left: dict[str, str]) -> Blocks:
    """The blocks of every linear layer that can have them; `left` gets the reasons for the others."""
    start = time.perf_counter()
    if kind == "gguf":
        why = "the file has no block weight of these values; its own parameter is used"
        blocks = _kept(model, linears, kind, lambda: _from_its_file(model, linears))
    elif kind == "bf16":  # rounded as soon as read
        why = ""
        blocks = Blocks({name: _rounded(module.weight.detach(), kind) for name, module in linears.items()})
    else:
        why = "its rows are no multiple of 32 values"
        fits = {name: module for name, module in linears.items() if module.weight.shape[1] % 32 == 0}
        made = {name: module.weight.detach() for name, module in fits.items()}
        blocks = _kept(model, fits, kind, lambda: {name: _rounded(w, kind) for name, w in made.items()})
    left |= {f"{name}: {kind}": why for name in linears if name not in blocks.weights}
    blocks.seconds = time.perf_counter() - start
    return blocks


def embeddings_of(model: nn.Module, linears: Mapping[str, Weighted], kind: str) -> dict[str, nn.Embedding]:
    """Embeddings that share no weight with a linear layer and may be looked up in blocks: only those of a GGUF file, which are exact."""
    shared = {id(module.weight) for module in linears.values()}
    return {n: m for n, m in _plain_embeddings(model) if kind == "gguf" and id(m.weight) not in shared}


def _plain_embeddings(model: nn.Module) -> list[tuple[str, nn.Embedding]]:
    found = [(name, module) for name, module in model.named_modules() if type(module) is nn.Embedding]
    return [(name, module) for name, module in found if module.max_norm is None and "forward" not in module.__dict__]


def release(
    model: nn.Module, found: Mapping[str, BlockWeight], left: dict[str, str], exact: bool
) -> tuple[list[Weighted], int]:
    """Frees the parameters that blocks replace in every module that uses them. Returns these modules and the freed bytes.

    exact: the blocks have exactly the parameters' values, so embeddings can be looked up in them.
    """
    looked_up = {id(module): module for _, module in _plain_embeddings(model)} if exact else {}
    holders: dict[int, list[tuple[str, Any]]] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append((name if key == "weight" else "", module))
    freed: list[Weighted] = []
    size = 0
    for together in holders.values():
        names = [name for name, module in together if name in found or (name and id(module) in looked_up)]
        weight = next((found[name] for name in names if name in found), None)
        if weight is None:
            continue
        if len(names) < len(together):
            left[f"{names[0]}: release"] = "its parameter is used elsewhere, where blocks of these values do not serve"
            continue
        parameter = together[0][1].weight
        size += parameter.nbytes
        released = ReleasedParameter.of(parameter)
        for _, module in together:
            module._parameters["weight"] = released
            if id(module) in looked_up:
                module.__dict__["_layerzero_blocks"] = BlockRows(weight, released)
            else:
                blocks = module.__dict__["_layerzero_blocks"]
                blocks.parameter, blocks.seen = released, None
            freed.append(module)
    _leave_files(model, size)
    for name, module in model.named_modules():
        blocks = module.__dict__.get("_layerzero_blocks")
        if blocks is None or blocks.seen is None:
            continue
        if are_counted(blocks.parameter):
            blocks.seen = Seen(blocks.parameter)
        else:
            del module.__dict__["_layerzero_blocks"]
            left[f"{name}: weights"] = "torch counts no writes into its parameter, which could not be released"
    return freed, size


def _leave_files(model: nn.Module, most: int) -> None:
    """Copies the other parameters if they are smaller, since a mapped file is freed only as a whole."""
    rest = [p for p in model.parameters() if type(p) is nn.Parameter]
    if sum(parameter.nbytes for parameter in rest) < most:
        for parameter in rest:
            parameter.data = parameter.data.clone()


@dataclasses.dataclass
class WeightsReport:
    """What `kernelize(weights=)` did. Errors compare the logits before and after; for a model without logits its first result, and 1 +
    the relative error replaces the perplexity ratio.

    bytes: of packed blocks; cached: whether they were on disk; seconds: time to get them; why_not_kept: why they are not on
    disk; released_bytes: freed by release_originals; activations: "input" or "int8"; why_activations: the measured times
    if rounding was allowed.
    """

    kind: str
    activations: str
    layers: int
    bytes: int
    cached: bool
    seconds: float
    why_not_kept: str
    max_logit_error: float
    perplexity_ratio: float  # of text that the model itself would write: exp of the mean KL divergence
    perplexity: tuple[float, float] | None  # of accuracy_ids, before and after
    why_activations: str = ""
    released_bytes: int = 0

    @staticmethod
    def of(kind: str, activations: str, blocks: Blocks, compared: Any) -> "WeightsReport":
        size = sum(weight.nbytes for weight in blocks.weights.values())
        kept = (blocks.cached, blocks.seconds, blocks.why_not_kept)
        return WeightsReport(kind, activations, len(blocks.weights), size, *kept, *compared)

    @property
    def worse(self) -> float:
        """The perplexity relative to the model's own."""
        return self.perplexity_ratio if self.perplexity is None else self.perplexity[1] / self.perplexity[0]

    def __str__(self) -> str:
        text = f"weights: {self.layers} in {self.kind}, activations {self.activations}"
        text += f" ({self.why_activations})" if self.why_activations else ""
        text += f", {self.bytes / 2**20:.1f} MiB packed"
        text += f", {'from the cache' if self.cached else 'made'} in {self.seconds:.2f} s"
        text += f", not kept on disk: {self.why_not_kept}" if self.why_not_kept else ""
        text += f", {self.released_bytes / 2**20:.1f} MiB of parameters released" if self.released_bytes else ""
        text += f"; largest error of a logit {self.max_logit_error:.3g}, perplexity times {self.perplexity_ratio:.4f}"
        return (
            text
            if self.perplexity is None
            else f"{text}, of the given text {self.perplexity[0]:.4g} -> {self.perplexity[1]:.4g}"
        )
