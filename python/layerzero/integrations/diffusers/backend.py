"""The attention backend "layerzero" of diffusers' dispatcher, and attention in the place of torch's function."""

from typing import Any

import torch
from diffusers.models import attention_dispatch
from torch.nn import functional

from layerzero import _layerzero
from layerzero.errors import VersionMismatchError
from layerzero.integrations.diffusers import choices
from layerzero.integrations.diffusers.replacing import done

NAME = "layerzero"
_attention = _layerzero.ops["attention"]
_registry = attention_dispatch._AttentionBackendRegistry
_names = attention_dispatch.AttentionBackendName


def _new_member() -> Any:
    """A name as those of diffusers are, which its dispatcher takes, but which is none of its list yet."""
    member = str.__new__(_names, NAME)
    member._name_, member._value_ = NAME.upper(), NAME
    return member


LAYERZERO = _new_member()


def register_backend() -> Any:
    """Makes the name "layerzero" known: `model.set_attention_backend("layerzero")`, `attention_backend("layerzero")`. Twice is harmless.

    Nothing is chosen by it. Returns the name as diffusers' dispatcher takes it. Raises VersionMismatchError where diffusers keeps its
    names in another way.
    """
    if LAYERZERO not in _registry._backends:
        _registry.register(LAYERZERO)(layerzero_attention)
    members = getattr(_names, "_member_map_", None)
    values = getattr(_names, "_value2member_map_", None)
    if not isinstance(members, dict) or not isinstance(values, dict):
        import diffusers

        raise VersionMismatchError(
            f"diffusers {diffusers.__version__}: wanted AttentionBackendName to be an enumeration with the members of Python's "
            f"enum, got {type(_names).__name__} without them; set processor._attention_backend = layerzero.integrations.diffusers."
            "backend.LAYERZERO, or use layerzero.kernelize"
        )
    if LAYERZERO.name not in members:
        members[LAYERZERO.name] = values[NAME] = LAYERZERO
        _names._member_names_.append(LAYERZERO.name)
    return LAYERZERO


def layerzero_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> Any:
    """query (B, S, Hq, D), key and value (B, T, Hkv, D): the output (B, S, Hq, D), with return_lse also the logarithms (B, S, Hq).

    attn_mask: bool (True keeps a key) or added to the scores; (B, T), (S, T), (B, S, T) or any that broadcasts to (B, Hq, S, T).
    """
    if _parallel_config is not None:
        raise NotImplementedError("layerzero: context parallelism; choose a backend of diffusers that supports it")
    if attn_mask is not None and attn_mask.dim() == 2 and attn_mask.shape == (query.shape[0], key.shape[1]):
        attn_mask = attn_mask[:, None, None]
    elif attn_mask is not None and attn_mask.dim() == 3 and attn_mask.shape[0] == query.shape[0]:
        attn_mask = attn_mask[:, None]
    if return_lse:
        mask, causal = _mask_of(attn_mask, is_causal, query.shape[1], key.shape[1], query.device)
        options: dict[str, Any] = {"causal": causal, "scale": scale, "attn_mask": mask, "dropout_p": dropout_p}
        out, lse = _attention(query, key, value, layout="BSHD", return_lse=True, **options)
        return out, lse.transpose(1, 2)
    if _is_served(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, 2):
        if not _is_torchs(query, key, value, attn_mask, is_causal, scale, "BSHD"):
            return _attend(query, key, value, attn_mask, is_causal, scale, "BSHD")
        done.calls["attention"] += 1
    heads_first = [rows.transpose(1, 2) for rows in (query, key, value)]
    further: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    own: Any = functional.scaled_dot_product_attention
    return own(*heads_first, attn_mask, dropout_p, is_causal, **further).transpose(1, 2)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As torch's function of this name, over (B, H, S, D); what the operation does not take goes to torch's."""
    if _is_served(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, 1):
        if not _is_torchs(query, key, value, attn_mask, is_causal, scale, "BHSD"):
            return _attend(query, key, value, attn_mask, is_causal, scale, "BHSD")
        done.calls["attention"] += 1
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _is_served(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, gqa: bool, heads_at: int
) -> bool:
    """Whether the operation means the same by these arguments: traces, mixed dtypes (autocast), dropout and odd shapes are torch's."""
    if dropout or (causal and mask is not None) or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled(query.device.type):
        return False
    rows = (query, key, value)
    plain = all(type(each) is torch.Tensor and each.dim() == 4 and each.dtype == query.dtype for each in rows)
    if not plain or query.is_meta or not query.is_floating_point():
        return False
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        return False
    own, shared = query.shape[heads_at], key.shape[heads_at]
    if shared != value.shape[heads_at] or (own != shared and not (gqa and own % shared == 0)):
        return False
    return mask is None or (type(mask) is torch.Tensor and mask.dim() <= 4)


def _is_torchs(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None, layout: str) -> bool:
    """Whether the operation would run torch's function as it is."""
    if not choices.is_launch_bound(query):
        return False
    shapes: tuple[Any, ...] = (query.shape, key.shape, value.shape, query.dtype, query.device, causal, layout)
    shapes += (None,) if mask is None else (mask.shape, mask.dtype)

    def call() -> tuple[Any, ...]:
        axis = layout.index("S")
        aligned, bottom = _mask_of(mask, causal, query.shape[axis], key.shape[axis], query.device)
        return (query, key, value), {"causal": bottom, "scale": scale, "attn_mask": aligned, "layout": layout}

    return choices.is_torchs("attention", "torch.sdpa.auto", shapes, call)


def _attend(
    query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None, layout: str
) -> torch.Tensor:
    axis = layout.index("S")
    mask, causal = _mask_of(mask, causal, query.shape[axis], key.shape[axis], query.device)
    out = _attention(query, key, value, causal=causal, scale=scale, attn_mask=mask, layout=layout)
    done.calls["attention"] += 1
    return out


def _mask_of(mask: Any, causal: bool, rows: int, keys: int, device: Any) -> tuple[Any, bool]:
    """The mask and `causal` of the operation. torch aligns a triangle at the first key, the operation at the last one."""
    if causal and rows != keys:
        mask, causal = torch.ones(rows, keys, dtype=torch.bool, device=device).tril(), False
    if mask is not None and mask.dim() < 4:
        mask = mask[(None,) * (4 - mask.dim())]
    return mask, causal
