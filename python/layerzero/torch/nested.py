"""Nested batches (torch.nested, jagged layout): attention over them runs as attention over packed sequences."""

import sys
from typing import Any

from layerzero import _layerzero
from layerzero.contracts import Contract
from layerzero.errors import InvalidRequestError, WrongTypeError
from layerzero.torch.checks import TENSOR_WANTED
from layerzero.torch.references import call_reference

_TENSORS = ("query", "key", "value")
# Arguments of attention that ragged_attention also has.
_SHARED = ("causal", "scale", "window", "softcap", "sinks", "alibi_slopes", "return_lse")


def refuse(contract: Contract, arguments: dict[str, Any]) -> None:
    """Raises WrongTypeError for a nested tensor, which no operation takes but attention, in the jagged layout."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    with torch._C.DisableTorchFunction():
        nested = {name: value for name, value in tensors.items() if value.is_nested}
        if contract["name"] == "attention":
            nested = {name: value for name, value in nested.items() if not is_jagged(torch, value)}
    for name, value in nested.items():
        kinds = ", or nested ones with layout torch.jagged" if contract["name"] == "attention" else ""
        raise WrongTypeError(
            f"{contract['name']}: {name}",
            TENSOR_WANTED + kinds,
            f"a nested tensor with layout {value.layout}",
            "pass its values() where the operation works row by row, else pad it: torch.nested.to_padded_tensor",
        )


def is_jagged(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.jagged


def attention(torch: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """`attention` of nested query, key and value (b, j, h, d), in BHSD (b, h, j, d). Returns a nested output like the
    query, and with return_lse a nested lse (b, j, h)."""
    heads_first = options.get("layout") == "BHSD"
    query, key, value = (_packed(torch, n, arguments.get(n), heads_first) for n in _TENSORS)
    for name in ("attn_mask", "dropout_p"):
        given = arguments.get(name)
        if given is not None and not (name == "dropout_p" and given == 0):
            fix = "pass causal, window or alibi_slopes, or padded tensors"
            raise InvalidRequestError(f"attention: {name}", "none with nested tensors", "one", fix)
    if options.get("out") is not None:
        raise InvalidRequestError("attention: out", "none with nested tensors", "a tensor", "leave it out")
    shared = {n: arguments[n] for n in _SHARED if arguments.get(n) is not None}
    kernel = {"kernel": options["kernel"]} if options.get("kernel") is not None else {}
    packed = {n: t.values() for n, t in zip(_TENSORS, (query, key, value), strict=True)}
    packed |= {"cu_seqlens_q": _offsets(torch, query), "cu_seqlens_kv": _offsets(torch, key)} | shared
    if not kernel and torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        result = call_reference("ragged_attention", packed)
    else:
        result = _layerzero.ops["ragged_attention"](**packed, **kernel)
    lse = result[1:] if isinstance(result, tuple) else ()
    output = torch.nested.nested_tensor_from_jagged(result[0] if lse else result, query.offsets())
    output = output.transpose(1, 2) if heads_first else output
    return (output, torch.nested.nested_tensor_from_jagged(lse[0], query.offsets())) if lse else output


def _packed(torch: Any, name: str, tensor: Any, heads_first: bool) -> Any:
    """Returns a nested tensor (b, j, h, d) whose rows are contiguous."""
    wanted = "a nested tensor (b, h, j, d)" if heads_first else "a nested tensor (b, j, h, d)"
    if not is_jagged(torch, tensor):
        got = type(tensor).__name__
        raise InvalidRequestError(
            f"attention: {name}", f"{wanted} in the jagged layout, like the others", got, "nest all or none"
        )
    if tensor.dim() != 4 or tensor._ragged_idx != (2 if heads_first else 1):
        raise InvalidRequestError(f"attention: {name}", wanted, f"shape {tuple(tensor.shape)}", "see also layout=")
    tensor = tensor.transpose(1, 2) if heads_first else tensor
    return tensor.contiguous() if tensor.lengths() is not None else tensor


def _offsets(torch: Any, nested: Any) -> Any:
    return nested.offsets().to(torch.int32)
