"""Torch reference of kv.rope_append_paged: any device; writes into the caches."""

import torch

from ..common import kv_rows as _rows


def reference(
    query,
    key,
    value,
    cos,
    sin,
    key_cache,
    value_cache,
    slots,
    *,
    position_ids=None,
    interleaved=False,
    rotary_dim=None,
    k_scale=None,
    v_scale=None,
):
    d, w = query.shape[-1], cos.shape[-1]
    r = rotary_dim if rotary_dim is not None else d if w == d or 2 * w == d else w
    if position_ids is not None:
        places = torch.where(position_ids < 0, cos.shape[0], position_ids).long()  # torch would count from the end
        cos, sin = cos[places], sin[places]
    if w != r:
        cos, sin = (t.repeat_interleave(2, -1) if interleaved else torch.cat((t, t), -1) for t in (cos, sin))
    output, turned = (_rotated(t, cos[:, None], sin[:, None], r, interleaved) for t in (query, key))
    _rows.append(key_cache, value_cache, turned, value, slots, k_scale, v_scale)
    return output


def _rotated(x, cos, sin, r, interleaved):
    """Products and their sum are rounded one by one."""
    wide, rotated = torch.promote_types(torch.float32, x.dtype), x[..., :r]
    if interleaved:
        swapped = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
    else:
        swapped = torch.cat((-rotated[..., r // 2 :], rotated[..., : r // 2]), dim=-1)
    output = rotated.to(wide) * cos.to(wide) + swapped.to(wide) * sin.to(wide)
    return torch.cat((output.to(x.dtype), x[..., r:]), dim=-1)
