"""Transformers' attention interface over LayerZero's attention operation, registered under the name "layerzero"."""

import functools
import sys

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask
from transformers.utils import output_capturing

from layerzero import _layerzero
from layerzero.integrations.transformers import biases, continuous, counts

NAME = "layerzero"
_BEFORE = "_layerzero_attention_before"
_MASKED = ("sdpa", "eager", "flex_attention")  # they know a window by the mask alone
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

    A call of continuous batching has packed sequences, see `continuous.paged_attention`. A call that asks for
    the weights gets them where the model gave them before `kernelize`, by the model's own code. A soft-cap is left out
    where the model's own attention did.
    """
    packed = continuous.is_packed(kwargs)
    eager = None if packed else _eager_of(module, kwargs)
    if eager:
        further = {"sliding_window": sliding_window, "softcap": softcap, "s_aux": s_aux, "position_bias": position_bias}
        kwargs |= {name: value for name, value in further.items() if value is not None}
        return eager(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
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
    if query.is_meta:  # shapes alone
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


def remember(modules, name):
    """The attention that `modules` had before `kernelize`, by the name of its implementation; None forgets it."""
    for module in modules:
        module.__dict__.pop(_BEFORE, None)
        if name is not None:
            module.__dict__[_BEFORE] = name


def _takes_windows(module):
    """Whether the attention before `kernelize` hid what lies before a window also where no mask did.

    Masks of Transformers hide it, except where they are sized by the cache of a layer that holds no keys (MiniMax).
    """
    return module.__dict__.get(_BEFORE) not in _MASKED


def leaves_softcap_out(module):
    """5.17's function over SDPA takes the soft-cap of Gemma 2 and computes without it; later versions refuse it."""
    return module.__dict__.get(_BEFORE) == "sdpa" and _sdpa_leaves_softcap_out()


@functools.cache
def _sdpa_leaves_softcap_out():
    one = torch.zeros(1, 1, 1, 8)
    try:
        sdpa_attention_forward(torch.nn.Identity(), one, one, one, None, softcap=1.0)
    except Exception:  # however it says so, it does not compute
        return False
    return True


def _eager_of(module, arguments):
    """The function of the module's file that gives weights, if they are wanted and were given before `kernelize`."""
    if module.__dict__.get(_BEFORE) != "eager" or not _wants_weights(arguments):
        return None
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def _wants_weights(arguments=()):
    """True inside a call that was asked for attention weights; Transformers says so to the hooks that keep them."""
    if getattr(output_capturing, "_active_collector", None) is None:
        return bool("output_attentions" in arguments and arguments["output_attentions"])
    return any("attentions" in key for key in wants_outputs())


def wants_outputs():
    """The names of what is kept of each layer in the call under way: hidden states, attention weights."""
    collector = getattr(output_capturing, "_active_collector", None)
    if collector is None:
        return ()
    return (collector.global_var if torch.compiler.is_compiling() else collector.get()) or ()


def layerzero_mask(*args, **kwargs):
    """The mask of sdpa, which the operation takes; for calls that want weights that of eager attention, which it takes too."""
    return (eager_mask if _wants_weights() else sdpa_mask)(*args, **kwargs)


def register():
    """Makes attn_implementation="layerzero" known; twice is harmless. The mask comes from the same name's function."""
    AttentionInterface.register(NAME, layerzero_attention)
    AttentionMaskInterface.register(NAME, layerzero_mask)
    if continuous.has_prefix():
        AttentionInterface.register(continuous.PAGED, layerzero_attention)
