"""Operations along the positions of sequences: pooling, causal convolution, the gated delta rule."""

from typing import Any

import torch
from torch.nn import functional as F

from layerzero.backends.torch.common import rounded
from layerzero.errors import KernelExecutionError


def sequence_pool(input, mask, mode, lengths):
    b, s, _ = input.shape
    if lengths is not None and not lengths.is_cuda and lengths.numel():
        low, high = (int(t) for t in lengths.aminmax())
        if low < 0 or high > s:
            raise KernelExecutionError("sequence_pool: lengths", f"numbers from 0 to {s}", f"{low} to {high}")
    if s == 0:
        return input.new_zeros(b, input.shape[2])
    if mask is None and lengths is None:
        if mode == "mean":
            return input.mean(1)
        return input.amax(1) if mode == "max" else input[:, 0 if mode == "first" else s - 1].clone()
    place: Any = None if lengths is None and mode in ("mean", "max") else torch.arange(s, device=input.device)
    valid: Any = mask if lengths is None else place < lengths[:, None]
    if valid.dtype != torch.bool:
        valid = valid != 0
    if mode == "mean":
        total = torch.where(valid[..., None], input, 0.0).sum(1, dtype=torch.promote_types(input.dtype, torch.float32))
        return rounded(torch.div, total, valid.sum(1, keepdim=True).clamp_(min=1), input.dtype)
    if mode == "max":
        return input.masked_fill(~valid[..., None], -torch.inf).amax(1).masked_fill(~valid.any(1, keepdim=True), 0)
    at = torch.where(valid, place, s if mode == "first" else -1)
    at = at.amin(1) if mode == "first" else at.amax(1)
    some = (at >= 0) & (at < s)
    rows = input[torch.arange(b, device=input.device), at.clamp(0, s - 1)]
    return rows.masked_fill(~some[:, None], 0)


def causal_conv1d(input, weight, state, bias, activation):
    """Uses torch's depthwise convolution over the state followed by the positions; float32 sums."""
    length, kept, taps = input.shape[1], state.shape[-1], weight.shape[-1]
    x = torch.cat([state, input.transpose(1, 2)], dim=-1)
    seen = x[..., kept - taps + 1 :]
    if not length or not x.numel():
        state.copy_(x[..., length:])
        return torch.empty_like(input, memory_format=torch.contiguous_format)
    output = F.conv1d(seen, weight[:, None], bias, groups=x.shape[1])
    if not x.is_cuda and not output.isfinite().all():  # a sum may have left float32 on its way to a finite value
        seen, weight = seen.double(), weight.double()
        bias = bias if bias is None else bias.double()
        output = F.conv1d(seen, weight[:, None], bias, groups=x.shape[1]).to(
            torch.promote_types(x.dtype, torch.float32)
        )
    output = output.transpose(1, 2)
    if activation == "silu":  # of -inf, if a sum overflows float32, it would be NaN
        output = F.silu(output.clamp_(min=torch.finfo(output.dtype).min))
    state.copy_(x[..., length:])
    return output.to(input.dtype, memory_format=torch.contiguous_format)


CHUNK = 64  # positions of the delta rule that are solved together


def _delta_inputs(query, key, value, g, beta, a_log, dt_bias, scale, l2_eps, beta_scale):
    """Returns scaled q, k, v [b, h_v, s, d], and log decays and betas [b, h_v, s], all in the wide dtype."""
    wide = torch.promote_types(query.dtype, torch.float32)
    group = value.shape[2] // max(query.shape[2], 1)
    q, k = (t.to(wide) for t in (query, key))
    if l2_eps is not None:
        q, k = (t * (t.square().sum(-1, keepdim=True) + l2_eps).rsqrt_() for t in (q, k))
    q = q * (max(query.shape[-1], 1) ** -0.5 if scale is None else scale)
    if group != 1:
        q, k = (t.repeat_interleave(group, 2) for t in (q, k))
    g, beta = g.to(wide), beta.to(wide)
    if a_log is not None:
        g = -a_log.to(wide).exp() * F.softplus(g if dt_bias is None else g + dt_bias.to(wide))
        beta = beta.sigmoid()
    if beta_scale != 1.0:
        beta = beta * beta_scale
    return (*(t.transpose(1, 2) for t in (q, k, value.to(wide))), g.transpose(1, 2), beta.transpose(1, 2))


def _delta_step(q, k, v, g, beta, state):
    """Computes one position; returns (output, state)."""
    state = state * g.exp()[..., None]
    read = torch.cat([q, k], 2) @ state
    change = (v - read[:, :, 1:]) * beta[..., None]
    output = torch.addcmul(read[:, :, :1], (q * k).sum(-1, keepdim=True), change)
    return output, torch.addcmul(state, k.transpose(-1, -2), change)


def _delta_chunks(q, k, v, g, beta, state):
    """Computes chunks of positions: the updates of the state solve a unit triangular system per chunk."""
    s, rest = q.shape[2], -q.shape[2] % CHUNK
    q, k, v = (F.pad(t, (0, 0, 0, rest)).unflatten(2, (-1, CHUNK)) for t in (q, k, v))
    g, beta = (F.pad(t, (0, rest)).unflatten(2, (-1, CHUNK)) for t in (g, beta))
    # exp(-200) is 0 in float32; sums are float64, because their differences matter.
    total = g.clamp(min=-200.0).double().cumsum(-1)
    between = (total[..., None] - total[..., None, :]).tril_().to(q.dtype).exp_().tril_()  # decay from column to row
    since, until = total.to(q.dtype).exp()[..., None], between[..., -1, :, None]
    strength = beta[..., None]
    system = ((k * strength) @ k.transpose(-1, -2) * between).tril_(-1)
    right = torch.cat([v * strength, k * (strength * since)], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    added, taken = solved.split([v.shape[-1], k.shape[-1]], -1)
    writes, last = (k * until).transpose(-1, -2), since[..., -1:, :]
    states, changes = q.new_empty(*q.shape[:3], *state.shape[2:]), torch.empty_like(v)
    for n in range(q.shape[2]):
        states[:, :, n] = state
        changes[:, :, n] = change = added[:, :, n] - taken[:, :, n] @ state
        state = state * last[:, :, n] + writes[:, :, n] @ change
    # Values that are not finite affect positions from their own on; 0 times them would affect earlier ones.
    finite = changes.isfinite()
    inside = (q @ k.transpose(-1, -2) * between).tril_()
    output = (q * since) @ states + inside @ torch.where(finite, changes, 0)
    output = output.masked_fill_(finite.logical_not_().cumsum(-2) > 0, torch.nan)
    return output.flatten(2, 3)[:, :, :s], state


def gated_delta_rule(query, key, value, g, beta, state, a_log, dt_bias, scale, l2_eps, beta_scale):
    if not query.shape[1] or not state.numel():
        return value.new_zeros(value.shape)
    parts = _delta_inputs(query, key, value, g, beta, a_log, dt_bias, scale, l2_eps, beta_scale)
    run: Any = _delta_step if query.shape[1] == 1 else _delta_chunks
    output, now = run(*parts, state.to(parts[0].dtype))
    state.copy_(now)
    return output.transpose(1, 2).to(value.dtype, memory_format=torch.contiguous_format)
