"""Torch reference of attention.gated_delta_rule: any device; writes into the state."""

import torch


def reference(query, key, value, g, beta, state, *, a_log=None, dt_bias=None, scale=None, l2_eps=None, beta_scale=1.0):
    compute = torch.promote_types(query.dtype, torch.float32)
    group = value.shape[2] // max(query.shape[2], 1)
    q, k = (rows.to(compute).repeat_interleave(group, dim=2) for rows in (query, key))
    if l2_eps is not None:
        q, k = (rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + l2_eps) for rows in (q, k))
    q = q * (max(query.shape[-1], 1) ** -0.5 if scale is None else scale)
    g, beta = g.to(compute), beta.to(compute)
    if a_log is not None:
        bias = 0 if dt_bias is None else dt_bias.to(compute)
        g, beta = -a_log.to(compute).exp() * torch.nn.functional.softplus(g + bias), beta.sigmoid()
    decay, beta = g.exp()[..., None, None], (beta * beta_scale)[..., None]
    now, output = state.to(compute), value.new_empty(value.shape)
    for t in range(query.shape[1]):
        now = now * decay[:, t]
        delta = beta[:, t] * (value[:, t].to(compute) - (now * k[:, t, :, :, None]).sum(-2))
        now = now + k[:, t, :, :, None] * delta[:, :, None]
        output[:, t] = (now * q[:, t, :, :, None]).sum(-2)
    state.copy_(now)
    return output
