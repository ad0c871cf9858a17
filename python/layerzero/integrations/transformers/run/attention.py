"""Transformers' attention interface over LayerZero's attention operation, registered under the name "layerzero".

A model that had eager attention gets "layerzero_eager", because a call without a mask means something else there. Under SDPA
`is_causal` decides, and plainly causal masks are not made; eager attention reads only the mask, never `is_causal`.
"""

import functools
import inspect

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils import output_capturing

from layerzero import _layerzero
from layerzero.integrations.transformers import biases, choices, counts
from layerzero.integrations.transformers.run import continuous

NAMES = NAME, EAGER = continuous.NAMES
_EAGER_FORWARD = "eager_attention_forward"
_BEFORE = "_layerzero_attention_before"
_CAUSAL = "_layerzero_causal"  # in the __dict__ of a mask
_MASKED = ("sdpa", "eager", "flex_attention")  # in these only the mask has a window
_attention = _layerzero.ops["attention"]


def layerzero_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    cache=None,
    **kwargs,
):
    """query (B, Hq, S, D), key and value (B, Hkv, T, D): the output (B, S, Hq, D), and None for the weights.

    It computes what Transformers' function over SDPA does: without a mask it is causal if `is_causal` says so. A call of continuous
    batching has packed sequences, see `continuous.paged_attention`. The soft-cap is ignored if the model's own attention ignored it.
    """
    packed = continuous.is_packed(kwargs)
    if softcap is not None and leaves_softcap_out(module):
        softcap = None
    counts.count_call(module, "_layerzero_attention_part")
    if packed:
        out = continuous.paged_attention(
            module, query, key, value, cache, scaling, sliding_window, softcap, s_aux, kwargs
        )
        return out, None
    length, total = query.shape[2], key.shape[2]
    if key.shape[0] != query.shape[0]:  # one sequence of keys for all queries, as torch's own functions allow
        key, value = (rows.expand(query.shape[0], -1, -1, -1) for rows in (key, value))
    if key.shape[1] != value.shape[1]:  # each in groups of its own, as they also allow
        key, value = (rows.repeat_interleave(query.shape[1] // rows.shape[1], dim=1) for rows in (key, value))
    if query.is_meta:  # only shapes are needed
        return query.new_empty(query.shape[0], length, query.shape[1], value.shape[-1]), None
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and attention_mask is None and length > 1
    if causal and total > length:
        # Only a prefill into an empty static cache comes without a mask and with more keys than rows: the keys beyond
        # the rows are not written yet.
        key, value, total = key[:, :, :length], value[:, :, :length], length
    mask = biases.merged(attention_mask, position_bias, total)
    if mask is not None and causal:
        mask, causal = biases.with_triangle(mask, 0), False
    if mask is None and not causal and length == 1 and is_causal:
        causal = True  # one row sees every key either way; a window counts from its position
    window = None
    if sliding_window is not None and attention_mask is None and causal and _takes_windows(module):
        window = int(sliding_window)
    out = _attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        causal=causal,
        scale=scaling,
        attn_mask=mask,
        dropout_p=dropout,
        window=window,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.to(query.dtype),
        layout="BSHD",
    )
    return out, None


def eager_attention(module, query, key, value, attention_mask, is_causal=None, **kwargs):
    """The same for models that had eager attention: only the mask says what a row sees.

    Calls that ask for the attention weights or for gradients use the model's own code: fused kernels recompute the weights from
    the sum of each row, which loses digits if scores are large.
    """
    if continuous.is_packed(kwargs):
        return layerzero_attention(module, query, key, value, attention_mask, **kwargs)
    trains = torch.is_grad_enabled() and any(rows.requires_grad for rows in (query, key, value))
    own = _own_eager(module) if trains or _wants_weights(kwargs) else None
    if own is not None:
        return own(module, query, key, value, attention_mask, **kwargs)
    causal = is_causal_mask(attention_mask)
    kwargs.pop("sliding_window", None)
    mask = None if causal else attention_mask
    return layerzero_attention(module, query, key, value, mask, is_causal=causal, **kwargs)


def _own_eager(module):
    """The function for eager attention that a module's forward calls, or None."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    # A file of several models has several such functions, with prefixes.
    named = [name for name in code.co_names if name.endswith(_EAGER_FORWARD)] if code else []
    return getattr(forward, "__globals__", {}).get(named[0] if named else _EAGER_FORWARD)


def choose(model, names=NAMES):
    """Chooses LayerZero's attention for a model: names[1] if it has eager attention, else names[0]. Raises what Transformers raises."""
    before = choices.chosen(model, "attn")
    choices.choose(model, "attn", names[0])
    had_eager = [(config, names[1]) for config, name in before if name == "eager"]
    choices.put_back([pair for pair in had_eager if pair[0]._attn_implementation == names[0]], "attn")


def remember(modules, name):
    """The attention that `modules` had before `kernelize`, by the name of its implementation; None forgets it."""
    for module in modules:
        module.__dict__.pop(_BEFORE, None)
        if name is not None:
            module.__dict__[_BEFORE] = name


def _takes_windows(module):
    """True if the attention before `kernelize` applied a window even without a mask.

    Transformers' masks apply the window, except if the mask's size comes from a layer without keys (MiniMax).
    """
    return module.__dict__.get(_BEFORE) not in _MASKED


def leaves_softcap_out(module):
    """Whether the model's own attention ignored the soft-cap: in 5.17 Transformers' function over SDPA does, later versions refuse it."""
    return module.__dict__.get(_BEFORE) == "sdpa" and _sdpa_leaves_softcap_out()


@functools.cache
def _sdpa_leaves_softcap_out():
    one = torch.zeros(1, 1, 1, 8)
    try:
        sdpa_attention_forward(torch.nn.Identity(), one, one, one, None, softcap=1.0)
    except Exception:  # it refuses the soft-cap, by whatever error
        return False
    return True


def _wants_weights(arguments):
    """True inside a call that asks for attention weights, by an argument or by Transformers' hooks that keep them."""
    return bool(arguments.get("output_attentions")) or any("attentions" in key for key in wants_outputs())


def wants_outputs():
    """The names of the outputs that the current call keeps of each layer: hidden states, attention weights."""
    collector = getattr(output_capturing, "_active_collector", None)
    if collector is None:
        return ()
    return (collector.global_var if torch.compiler.is_compiling() else collector.get()) or ()


def layerzero_eager_mask(*args, **kwargs):
    """The mask of eager attention, marked where it is plainly causal."""
    if not kwargs.get("allow_is_causal_skip", True) or torch.compiler.is_compiling():
        return eager_mask(*args, **kwargs)
    seen = sdpa_mask(*args, **(kwargs | {"allow_is_bidirectional_skip": False}))
    if seen is None:
        mask = eager_mask(*args, **kwargs)
        if mask is not None:
            mask.__dict__[_CAUSAL] = True
        return mask
    if kwargs.get("allow_is_bidirectional_skip"):
        return eager_mask(*args, **kwargs)
    dtype = kwargs.get("dtype", torch.float32)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), torch.finfo(dtype).min)


def is_causal_mask(mask):
    """Whether a mask from `layerzero_eager_mask` hides only later keys."""
    return isinstance(mask, torch.Tensor) and _CAUSAL in mask.__dict__


def register():
    """Registers attn_implementation="layerzero" and its masks; may be called again."""
    AttentionMaskInterface.register(NAME, sdpa_mask)
    AttentionMaskInterface.register(EAGER, layerzero_eager_mask)
    for prefix in ("", continuous.PREFIX) if continuous.has_prefix() else ("",):
        AttentionInterface.register(f"{prefix}{NAME}", layerzero_attention)
        AttentionInterface.register(f"{prefix}{EAGER}", eager_attention)
    continuous.register()
