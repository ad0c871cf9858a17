"""torch.nn.functional.scaled_dot_product_attention and its backends as kernels of dense and cross attention.

Adapters handle what the constraints in capabilities.json do not exclude: views between layouts, causal alignment
(bottom-right here, top-left in torch), masks in the form that a kernel reads. On CUDA none reads a value of a tensor,
because that waits for the device: a NaN of a masked key or value may then reach the output, which the descriptors
declare. A backend that `torch.nn.attention.sdpa_kernel` or a flag of torch.backends.cuda forbids is not run: torch
chooses among the others.
"""

import torch
from torch.backends import cuda
from torch.nn import functional as F

from layerzero.backends.torch.common import number, wants_grad
from layerzero.torch.captures import plans_first

_sdpa = F.scaled_dot_product_attention


def heads_first(layout, *tensors):
    return tensors if layout == "BHSD" else tuple(t.transpose(1, 2) for t in tensors)


def as_given(layout, output):
    return output if layout == "BHSD" else output.transpose(1, 2)


def _alignment(query, key, causal, attn_mask):
    """Returns (is_causal, mask) for torch's top-left alignment with the same meaning as the call."""
    s_q, s_kv = query.shape[-2], key.shape[-2]
    if not causal or s_q == 1:  # one query is at the last position and sees every key
        return False, attn_mask
    if s_q == s_kv:
        return True, attn_mask
    return False, torch.ones(s_q, s_kv, dtype=torch.bool, device=query.device).tril(s_kv - s_q)


def positive_scale(query, scale):
    """Moves the scale's sign, or 0, into the query: kernels take the maximum before they scale."""
    if scale is None or scale > 0:
        return query, scale
    return (query * 0, 1.0) if scale == 0 else (-query, -scale)


def four_axes(mask):
    return mask if mask is None else mask[(None,) * (4 - mask.dim())]


def additive(query, key, mask):
    """Returns a mask as a float bias of the query's dtype, 0 and -inf for a boolean one, with rows padded to 16 bytes.

    Shape: (b or 1, h or 1, s_q or 1, s_kv). For a boolean mask cuDNN fills in a finite number: a row that sees no key
    would get the mean of the values (torch 2.11). A mask with one column for all keys ends the CUDA context there.
    """
    mask = four_axes(mask)
    s_kv = key.shape[2]
    bias = query.new_empty((*mask.shape[:3], -(-s_kv // 16) * 16))[..., :s_kv]
    if mask.dtype != torch.bool:
        return bias.copy_(mask)
    seen, hidden = (number(value, bias.device, bias.dtype) for value in (0.0, -torch.inf))
    return torch.where(mask.expand(bias.shape), seen, hidden, out=bias)  # one kernel


def _bias(query, key, mask):
    """Returns the mask in a form that torch's kernels read correctly, without a copy if possible."""
    if mask.dtype == torch.bool or mask.shape[-1] != key.shape[2] or mask.stride(-1) != 1 or mask.data_ptr() % 16:
        return additive(query, key, mask)
    return mask if mask.dim() in (2, 4) else four_axes(mask)


# ---- torch's own choice of a backend


@plans_first
def sdpa_auto(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """Serves calls without a mask whose causal triangle is square, where torch's alignment equals the operation's."""
    if scale <= 0:
        query, scale = positive_scale(query, scale)
    if rest[-1] == "BHSD":
        causal = causal and query.shape[2] > 1
        grouped = query.shape[1] != key.shape[1]
        return _sdpa(query, key, value, None, dropout_p, causal, scale=scale, enable_gqa=grouped)
    causal = causal and query.shape[1] > 1
    grouped = query.shape[2] != key.shape[2]
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    return _sdpa(query, key, value, None, dropout_p, causal, scale=scale, enable_gqa=grouped).transpose(1, 2)


@plans_first
def sdpa_auto_window(query, key, value, causal, scale, attn_mask, dropout_p, window, *rest):
    """Serves one query, which sees a view of the last `window` keys."""
    axis = 2 if rest[-1] == "BHSD" else 1
    if window < key.shape[axis]:
        start = key.shape[axis] - window
        key, value = key.narrow(axis, start, window), value.narrow(axis, start, window)
    return sdpa_auto(query, key, value, False, scale, None, dropout_p, *rest)


@plans_first
def sdpa_auto_mask(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """Serves calls without window, cap, sinks and ALiBi: a causal triangle that isn't square becomes a mask."""
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(rest[-1], query, key, value)
    is_causal, mask = _alignment(q, k, causal, attn_mask)
    if mask is not None:
        mask = _bias(q, k, mask)
    grouped = q.shape[1] != k.shape[1]
    return as_given(rest[-1], _sdpa(q, k, v, mask, dropout_p or 0.0, is_causal, scale=scale, enable_gqa=grouped))


@plans_first
def sdpa_auto_band(query, key, value, causal, scale, attn_mask, dropout_p, window, *rest):
    """Serves a window as a mask: every row sees its own position and the window - 1 before it."""
    axis = 2 if rest[-1] == "BHSD" else 1
    s_q, s_kv = query.shape[axis], key.shape[axis]
    band = torch.ones(s_q, s_kv, dtype=torch.bool, device=query.device).tril_(s_kv - s_q)
    return sdpa_auto_mask(query, key, value, False, scale, band.triu_(s_kv - s_q - window + 1), dropout_p, *rest)


def aligned(tensor):
    """Returns the tensor, or a copy if its address or strides are not multiples of 16 bytes.

    Other head dimensions are left to torch, which pads them for a fused kernel or uses none.
    """
    size = tensor.element_size()
    fits = tensor.data_ptr() % 16 == 0 and all(s * size % 16 == 0 for s in tensor.stride()[:-1])
    if fits or tensor.shape[-1] * size % 16:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


@plans_first
def sdpa_auto_unaligned(query, key, value, *rest):
    return sdpa_auto_mask(aligned(query), aligned(key), aligned(value), *rest)


# ---- one backend by name


def _expanded(q, k, causal, attn_mask):
    """Returns (is_causal, bias expanded to every batch and head) for the aten functions."""
    is_causal, mask = _alignment(q, k, causal, attn_mask)
    if mask is None:
        return is_causal, None
    return is_causal, additive(q, k, mask).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])


def sdpa_flash(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """Calls the aten function, which aligns causal bottom-right, as the operation does."""
    if not cuda.flash_sdp_enabled():
        return sdpa_auto_mask(query, key, value, causal, scale, attn_mask, dropout_p, *rest)
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(rest[-1], query, key, value)
    output = torch._scaled_dot_product_flash_attention(q, k, v, dropout_p or 0.0, bool(causal), False, scale=scale)[0]
    return as_given(rest[-1], output)


def sdpa_efficient(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    if not cuda.mem_efficient_sdp_enabled():
        return sdpa_auto_mask(query, key, value, causal, scale, attn_mask, dropout_p, *rest)
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(rest[-1], query, key, value)
    is_causal, bias = _expanded(q, k, causal, attn_mask)
    grad = wants_grad(q, k, v, attn_mask)
    output = torch._scaled_dot_product_efficient_attention(
        q, k, v, bias, grad, dropout_p or 0.0, is_causal, scale=scale
    )[0]
    return as_given(rest[-1], output)


def _cudnn_allowed(mask):
    """False where torch refuses cuDNN (deterministic algorithms) or its backward returns no gradient of masks."""
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    return cuda.cudnn_sdp_enabled() and not strict and not wants_grad(mask)


@plans_first
def sdpa_cudnn(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    if not _cudnn_allowed(attn_mask):
        return sdpa_auto_mask(query, key, value, causal, scale, attn_mask, dropout_p, *rest)
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(rest[-1], query, key, value)
    is_causal, bias = _expanded(q, k, causal, attn_mask)
    output = torch._scaled_dot_product_cudnn_attention(
        q, k, v, bias, wants_grad(q, k, v), dropout_p or 0.0, is_causal, False, scale=scale
    )[0]
    return as_given(rest[-1], output)


# ---- the CPU kernel and the composite expression, exact for masked NaN


def _reference(query, key, value, causal, scale, attn_mask, layout):
    from layerzero.torch.references import call_reference

    given = {"query": query, "key": key, "value": value, "causal": bool(causal), "scale": scale, "attn_mask": attn_mask}
    return call_reference("attention", given, layout)


def _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p):
    """Returns the output, or the reference's if torch's may be wrong. For host memory, whose values may be read.

    torch adds masks to logits and multiplies masked values by 0, so that a NaN of a masked key or an infinity of a
    masked value reaches the output; its CPU kernel returns 0 for a row whose logits are all NaN.
    """
    if dropout_p or not output.numel():  # the reference has no dropout
        return output
    out, q, k = (t.detach() for t in (output, query, key))
    finite = bool((out.sum(dtype=torch.float32) + q.sum(dtype=torch.float32)).isfinite())
    if finite and (not bool((out[..., 0] == 0).any()) or bool(k.sum(dtype=torch.float32).isfinite())):
        return output
    return _reference(query, key, value, causal, scale, attn_mask, layout)


def attend(function, query, key, value, causal, scale, attn_mask, dropout_p, layout):
    """Computes the operation on the host with a top-left causal function(q, k, v, mask, is_causal, scale).

    Any such function works, also of other libraries: results wrong from NaN and infinity in masked keys are corrected.
    """
    scaled, factor = positive_scale(query, scale)
    q, k, v = heads_first(layout, scaled, key, value)
    is_causal, mask = _alignment(q, k, causal, attn_mask)
    output = as_given(layout, function(q, k, v, mask, is_causal, factor))
    return _exact(output, query, key, value, causal, scale, attn_mask, layout, dropout_p)


def _cpu(q, k, v, mask, causal, scale):
    return _sdpa(q, k, v, four_axes(mask), 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def sdpa_cpu(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """torch's CPU flash kernel, which `scaled_dot_product_attention` chooses wherever this kernel is admissible."""
    return attend(_cpu, query, key, value, causal, scale, attn_mask, dropout_p, rest[-1])


def sdpa_math(query, key, value, causal, scale, attn_mask, dropout_p, *rest):
    """The composite expression, on any device."""
    layout = rest[-1]
    if not cuda.math_sdp_enabled():
        return sdpa_auto_mask(query, key, value, causal, scale, attn_mask, dropout_p, layout)

    def math(q, k, v, mask, causal, scale):
        if mask is not None and mask.dtype == torch.bool:  # the aten function would add it as 0 and 1
            mask = q.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        return torch._scaled_dot_product_attention_math(
            q, k, v, mask, dropout_p or 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )[0]

    if query.device.type == "cpu":
        return attend(math, query, key, value, causal, scale, attn_mask, dropout_p, layout)
    hides = attn_mask is not None or (causal and query.shape[2 if layout == "BHSD" else 1] > 1)
    if hides and not dropout_p:  # exact without reading the output, which would wait for the device
        return _reference(query, key, value, causal, scale, attn_mask, layout)
    query, scale = positive_scale(query, scale)
    q, k, v = heads_first(layout, query, key, value)
    is_causal, mask = _alignment(q, k, causal, attn_mask)
    return as_given(layout, math(q, k, v, four_axes(mask), is_causal, scale))


# ---- cross attention, which is never causal


def _cross(adapter):
    def cross(query, key, value, *rest):
        return adapter(query, key, value, False, *rest)

    return plans_first(cross) if hasattr(adapter, "before_capture") else cross


cross_sdpa_auto = _cross(sdpa_auto)
cross_sdpa_auto_mask = _cross(sdpa_auto_mask)
cross_sdpa_auto_unaligned = _cross(sdpa_auto_unaligned)
cross_sdpa_cpu = _cross(sdpa_cpu)
cross_sdpa_math = _cross(sdpa_math)
cross_sdpa_flash = _cross(sdpa_flash)
cross_sdpa_efficient = _cross(sdpa_efficient)
cross_sdpa_cudnn = _cross(sdpa_cudnn)
