"""Torch reference of posenc.rope: any device, differentiable."""

import torch


def _rotary_dim(d, width, rotary_dim):
    if rotary_dim is not None:
        return rotary_dim
    return d if width == d or 2 * width == d else width


def _per_column(table, r, interleaved):
    if table.shape[-1] == r:
        return table
    return table.repeat_interleave(2, dim=-1) if interleaved else torch.cat((table, table), dim=-1)


def reference(input, cos, sin, interleaved=False, *, position_ids=None, inverse=False, rotary_dim=None, layout="BSHD"):
    r = _rotary_dim(input.shape[-1], cos.shape[-1], rotary_dim)
    if position_ids is not None:
        # Below 0 is out of range too: torch would count from the end.
        places = torch.where(position_ids < 0, cos.shape[0], position_ids).long()
        cos, sin = cos[places], sin[places]
    head_axis = 1 if layout == "BHSD" else 2
    cos, sin = (_per_column(t if t.dim() == 3 else t[None], r, interleaved).unsqueeze(head_axis) for t in (cos, sin))
    rotated = input[..., :r]
    if interleaved:
        swapped = torch.stack((-rotated[..., 1::2], rotated[..., 0::2]), dim=-1).flatten(-2)
    else:
        swapped = torch.cat((-rotated[..., r // 2 :], rotated[..., : r // 2]), dim=-1)
    compute = torch.promote_types(torch.float32, input.dtype)
    output = rotated.to(compute) * cos.to(compute) + swapped.to(compute) * (sin.to(compute) * (-1 if inverse else 1))
    return torch.cat((output.to(input.dtype), input[..., r:]), dim=-1)
