"""Small inputs for an attention module of diffusers, and what the module makes of them."""

import inspect
from typing import Any

import torch
from torch import nn

from layerzero.integrations.diffusers.replacing import agrees, normal

_ROWS, _TEXT, _SIDE = 6, 5, 4


def _tables(head: int, rows: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = normal(rows, head // 2, seed=9).repeat_interleave(2, dim=-1).to(like.device)
    return angles.cos(), angles.sin()


def rotates(attention: Any) -> bool:
    """Whether a module may be given tables of a rotation."""
    call = type(attention.processor).__call__
    return any("rotary" in name or name == "freqs_cis" for name in inspect.signature(call).parameters)


def _first(attention: nn.Module, *names: str) -> Any:
    found = (getattr(attention, name, None) for name in names)
    return next((each for each in found if isinstance(getattr(each, "in_features", None), int)), None)


def inputs_of(attention: nn.Module) -> list[dict[str, Any]]:
    """Arguments that a module may take, the fullest first: text and rows, tables of a rotation, a picture."""
    query = _first(attention, "to_q", "to_qkv", "to_qkv_mlp_proj")
    if query is None:
        return []
    width, like = query.in_features, query.weight
    rows: dict[str, Any] = {"hidden_states": normal(2, _ROWS, width, like=like)}
    key, added = _first(attention, "to_k"), _first(attention, "add_k_proj", "to_added_qkv")
    tries: list[dict[str, Any]] = []
    if added is not None:
        tries.append(rows | {"encoder_hidden_states": normal(2, _TEXT, added.in_features, like=like, seed=8)})
        picture = normal(2, width, _SIDE, _SIDE, like=like)  # added keys of a picture's attention
        tries.append(tries[0] | {"hidden_states": picture})
    if key is not None and getattr(attention, "added_kv_proj_dim", None) is None:
        text = rows | {"encoder_hidden_states": normal(2, _TEXT, key.in_features, like=like, seed=8)}
        mask = torch.zeros(2, 1, _TEXT, device=like.device, dtype=like.dtype)
        mask[1, :, -2:] = -1e4
        tries += [text, text | {"attention_mask": mask}]
    if key is None or key.in_features == width:
        tries.append(rows)
        if getattr(attention, "group_norm", None) is not None:
            tries.append({"hidden_states": normal(2, width, _SIDE, _SIDE, like=like)})
    return [turned for each in tries for turned in _turned(attention, each, like)]


def _turned(attention: nn.Module, given: dict[str, Any], like: torch.Tensor) -> list[dict[str, Any]]:
    """With tables of the rows, and of rows and text together, where the module takes some."""
    heads = getattr(attention, "heads", None)
    inner = getattr(attention, "inner_dim", None)
    head = getattr(attention, "head_dim", None) or (inner // heads if heads and inner else None)
    if not rotates(attention) or head is None or "image_rotary_emb" not in _parameters(attention):
        return [given]
    lengths = [given["hidden_states"].shape[1]]
    if "encoder_hidden_states" in given:
        lengths.append(lengths[0] + _TEXT)
    return [given, *(given | {"image_rotary_emb": _tables(head, length, like)} for length in lengths)]


def _parameters(attention: Any) -> Any:
    return inspect.signature(type(attention.processor).__call__).parameters


def _result(attention: Any, given: dict[str, Any]) -> Any:
    try:
        return attention(**given)
    except Exception:  # an input that is none for this module
        return None


def results_of(attention: nn.Module) -> list[tuple[dict[str, Any], Any]]:
    """[(arguments, result)] of those inputs on which a module's own code runs."""
    tried = [(given, _result(attention, given)) for given in inputs_of(attention)]
    return [(given, result) for given, result in tried if result is not None]


def agree(attention: nn.Module, results: list[tuple[dict[str, Any], Any]]) -> bool:
    """Whether a module returns these results still, for each of their inputs."""
    return all(agrees(_result(attention, given), expected) for given, expected in results)
