"""Errors for unknown arguments and names of a call, with the nearest known one, also from torch's names."""

from collections.abc import Iterable
from typing import Any, NoReturn

from layerzero.contracts import contracts, is_seeded
from layerzero.errors import WrongTypeError, did_you_mean

# Argument names of other libraries and their equivalents here; the first that the operation has is suggested.
_SYNONYMS = {
    "is_causal": ("causal",),
    "epsilon": ("eps",),
    "variance_epsilon": ("eps",),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "x": ("input", "query"),
    "hidden_states": ("input",),
    "mask": ("attn_mask", "mask"),
    "attention_mask": ("attn_mask", "mask"),
    "softmax_scale": ("scale", "sm_scale"),
    "scale": ("sm_scale",),
    "sm_scale": ("scale",),
    "window_size": ("window", "window_left"),
    "gamma": ("weight",),
    "beta": ("bias",),
    "block_table": ("block_tables",),
    "page_table": ("block_tables", "kv_indices"),
    "seq_lens": ("context_lens", "lengths"),
    "cu_seqlens_k": ("cu_seqlens_kv",),
    "max_seqlen_k": ("max_seqlen_kv",),
    "slot_mapping": ("slots",),
    "positions": ("position_ids",),
    "top_k": ("k",),
    "top_p": ("p",),
    "training": ("dropout_p",),
}
# Arguments of torch's functions that have no equivalent here, with the advice to give.
_NOT_NEEDED = {
    "dim": "it works on the last axis: move that axis there with input.movedim(dim, -1)",
    "axis": "it works on the last axis: move that axis there with input.movedim(axis, -1)",
    "enable_gqa": "leave it out: fewer heads of key and value mean grouped queries",
    "inplace": "pass out=input where the operation allows it",
    "requires_grad": "leave it out: the tensors determine it",
    "is_neox": "interleaved=False is NeoX's form",
    "device": "leave it out: the tensors determine it; explain() and which() take device=",
}


def names_of(operation: str) -> list[str]:
    """Returns every argument name of an operation's Python function."""
    contract = contracts()[operation]
    options = ["generator"] if is_seeded(contract) else []
    return (
        [p["name"] for p in contract["params"]] + options + ["layout"] * bool(contract["layouts"]) + ["kernel", "out"]
    )


def refuse_keyword(operation: str, keyword: str) -> NoReturn:
    """Refuses an argument that the operation does not have."""
    names = names_of(operation)
    meant = next((name for name in _SYNONYMS.get(keyword, ()) if name in names), None)
    fix = f"did you mean {meant}?" if meant else did_you_mean(keyword, names) or _NOT_NEEDED.get(keyword, "")
    raise WrongTypeError(f"{operation}: unexpected argument {keyword!r}", _list(names), "another name", fix)


def refuse_twice(operation: str, keyword: str) -> NoReturn:
    """Refuses an argument that was given by position and by name."""
    raise WrongTypeError(f"{operation}: {keyword}", "one value", "two values", "it was given by position and by name")


def refuse_positional(operation: str, given: int) -> NoReturn:
    """Refuses more positional arguments than the operation takes."""
    params = contracts()[operation]["params"]
    taken = [p["name"] for p in params if not p["keyword_only"]]
    named = [name for name in names_of(operation) if name not in taken]
    wanted = f"at most {len(taken)} positional ({', '.join(taken)})" if taken else "no positional ones"
    raise WrongTypeError(f"{operation}: arguments", wanted, str(given), f"pass by name: {', '.join(named)}")


def _list(names: Iterable[Any]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}"
