"""Attention processors: diffusers' own code, with LayerZero's attention and rotation in the place of two of its functions.

A processor projects, normalises, attends and adds a residual. What it does around attention differs from one to the next, and stays
diffusers' own: only `F.scaled_dot_product_attention` and the rotation are others, in a subclass and not in diffusers' files.
"""

import functools
import inspect
import types
from typing import Any

import torch
from diffusers.models import attention_processor
from torch.nn import functional

from layerzero import _layerzero
from layerzero.integrations.diffusers import backend
from layerzero.integrations.diffusers.replacing import agrees, done, normal

PARTS = "_layerzero_parts"  # of a processor: the report's entries by operation
_SDPA = "scaled_dot_product_attention"
_ROTATIONS = ("apply_rotary_emb", "apply_rotary_emb_qwen")
# Processors whose scores are a product of their own, and the later ones that compute the same through torch's function.
_LATER = {"AttnProcessor": "AttnProcessor2_0", "AttnAddedKVProcessor": "AttnAddedKVProcessor2_0"}
_rope = _layerzero.ops["rope"]


class _Functional:
    """torch.nn.functional with another attention."""

    scaled_dot_product_attention = staticmethod(backend.scaled_dot_product_attention)

    def __getattr__(self, name: str) -> Any:
        return getattr(functional, name)


class _Globals(dict):
    """The globals of a file as they are at each moment, with other values under some names."""

    def __init__(self, others: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(others)
        self._own = own

    def __missing__(self, name: str) -> Any:
        return self._own[name]


def _restored(base: type, state: dict[str, Any]) -> Any:
    kind, _ = served(base)
    processor = kind.__new__(kind)
    processor.__dict__.update(state)
    return processor


@functools.lru_cache
def served(base: type) -> tuple[Any, str | None]:
    """(the subclass of a processor that runs its code with LayerZero's operations, None), or (None, why there is none)."""
    code = getattr(inspect.unwrap(base.__call__), "__code__", None)
    if not isinstance(base.__call__, types.FunctionType) or code is None or hasattr(base.__call__, "__wrapped__"):
        return None, "its __call__ is no plain function"
    call = base.__call__
    others: dict[str, Any] = {}
    if _SDPA in code.co_names and call.__globals__.get("F") is functional:
        others["F"] = _Functional()
    rotations = [name for name in _ROTATIONS if callable(call.__globals__.get(name)) and name in code.co_names]
    for name in rotations:
        if rotates_alike(call.__globals__[name]):
            others[name] = rotation_of(call.__globals__[name])
    operations = tuple("attention" if name == "F" else "posenc.rope" for name in others)
    if hasattr(base, "_attention_backend"):  # diffusers' dispatcher calls the backend
        operations = ("attention", *operations)
    if not operations:
        return None, "its code calls neither torch's attention nor a rotation that the operation computes"
    function = types.FunctionType(
        code, _Globals(others, call.__globals__), "__call__", call.__defaults__, call.__closure__
    )
    function.__kwdefaults__, function.__annotations__ = call.__kwdefaults__, call.__annotations__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(self, *args, **kwargs)
        before = dict(done.calls)
        result = function(self, *args, **kwargs)
        for operation, part in self.__dict__.get(PARTS, {}).items():
            part["calls"] += done.calls[operation] != before[operation]
        return result

    # diffusers passes on what the signature names.
    __call__.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    members = {
        "__call__": __call__,
        "__module__": __name__,
        "__doc__": f"{base.__name__} with LayerZero's operations.",
        "__reduce__": lambda self: (_restored, (base, self.__dict__)),
        "operations": operations,
    }
    return type(f"LayerZero{base.__name__}", (base,), members), None


def processor_of(processor: Any) -> tuple[Any, str | None]:
    """(the class that runs in place of a processor's own, None) or (None, why its own stays)."""
    kind: Any = type(processor)
    later = _LATER.get(kind.__name__)
    if later is not None and kind is getattr(attention_processor, kind.__name__, None):
        kind = getattr(attention_processor, later)
    if "Sliced" in kind.__name__ or "XFormers" in kind.__name__:
        return None, f"{kind.__name__} was chosen, which is not torch's attention"
    found, reason = served(kind)
    return found, None if found is not None else f"{kind.__name__}: {reason}"


# ---- rotations


def rotation_of(own: Any) -> Any:
    """A function(x, freqs_cis, use_real, use_real_unbind_dim, sequence_dim) as diffusers has it, through the operation."""
    parameters = inspect.signature(own).parameters
    names = tuple(parameters)
    defaults = {name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty}

    @functools.wraps(own)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        # Bound by hand: inspect's bind takes longer than the kernel. A call that does not fit is an error of its own code.
        if len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            return own(*args, **kwargs)
        result = _rotated(**{**defaults, **dict(zip(names, args, strict=False)), **kwargs})
        return own(*args, **kwargs) if result is None else result

    return rotate


def _rotated(
    x: Any,
    freqs_cis: Any,
    use_real: bool = True,
    use_real_unbind_dim: int = -1,
    sequence_dim: int | None = None,
) -> torch.Tensor | None:
    """The rotation of (B, H, S, D), or (B, S, H, D) with sequence_dim 1; None where the operation does not mean the same."""
    if type(x) is not torch.Tensor or x.dim() != 4 or torch.is_grad_enabled() or x.is_meta:
        return None
    if not use_real:  # complex numbers (S, D / 2) or (B, S, D / 2), of neighbours; rows are (B, S, H, D)
        if not isinstance(freqs_cis, torch.Tensor) or not freqs_cis.is_complex():
            return None
        cos, sin = freqs_cis.real.contiguous(), freqs_cis.imag.contiguous()
        columns, axis, interleaved = 2 * cos.shape[-1], 1, True
    else:
        cos, sin = (table.to(x.device) for table in freqs_cis)
        if cos.dim() != 2 or use_real_unbind_dim not in (-1, -2) or sequence_dim not in (1, 2):
            return None
        columns, axis, interleaved = cos.shape[-1], sequence_dim, use_real_unbind_dim == -1
    if columns != x.shape[-1] or cos.shape[-2] != x.shape[axis] or cos.dim() not in (2, 3):
        return None
    turned = _rope(x, cos, sin, interleaved=interleaved, layout="BSHD" if axis == 1 else "BHSD")
    done.calls["posenc.rope"] += 1
    return turned


@functools.lru_cache
@torch.no_grad()
def rotates_alike(own: Any) -> bool:
    """Whether a function rotates as `_rotated` takes it: by all that its arguments can choose, in two dtypes."""
    rows, table = normal(2, 3, 3, 8), normal(2, 3, 8, seed=8)
    names = inspect.signature(own).parameters
    if not {"x", "freqs_cis", "use_real", "use_real_unbind_dim"} <= set(names):
        return False
    axes: list[dict[str, Any]] = [{"sequence_dim": 1}, {"sequence_dim": 2}] if "sequence_dim" in names else [{}]
    tries: list[tuple[Any, dict[str, Any]]] = [
        ((table[0], table[1]), {"use_real_unbind_dim": dim} | axis) for dim in (-1, -2) for axis in axes
    ]
    waves = torch.complex(table[..., :4], table[..., 4:])
    tries += [(freqs, {"use_real": False}) for freqs in (waves, waves[0])]
    for x in (rows, rows.bfloat16()):
        for freqs, further in tries:
            given = inspect.signature(own).bind(x, freqs, **further)
            given.apply_defaults()
            mine = _rotated(**given.arguments)
            try:
                expected = own(x, freqs, **further)
            except (RuntimeError, ValueError, IndexError):  # such tables are not for it, nor for us then
                continue
            if mine is not None and not agrees(mine, expected):
                return False
    return True


def __getattr__(name: str) -> Any:
    base = {
        "LayerZeroAttnProcessor": "AttnProcessor2_0",
        "LayerZeroAttnAddedKVProcessor": "AttnAddedKVProcessor2_0",
        "LayerZeroJointAttnProcessor": "JointAttnProcessor2_0",
    }.get(name)
    if base is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    kind, reason = served(getattr(attention_processor, base))
    if kind is None:
        raise ImportError(f"{name}: diffusers' {base} does not fit: {reason}", name=__name__)
    return kind
