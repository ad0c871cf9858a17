"""Torch reference of sampling.speculative: any device, float64 inside."""

import torch

from ..common import sampling as _sampling

_ANSWER = "mass in every row and draft ids inside the vocabulary in strict mode"


def reference(draft_probs, draft_token_ids, target_probs, *, seed=None, offset=0, uniform=None, strict=False):
    (b, n, vocab), device = draft_probs.shape, draft_probs.device
    ids = draft_token_ids.long()
    rows = torch.arange(b, device=device)
    steps = torch.arange(n, device=device)
    given = None if uniform is None else _sampling.given_uniform(uniform)
    if vocab == 0:
        if strict:
            _sampling.answered("target_probs", _ANSWER, rows < 0)
        return torch.full((b, n + 1), -1, device=device), torch.zeros(b, dtype=torch.int64, device=device)
    inside = (ids >= 0) & (ids < vocab)
    safe = torch.where(inside, ids, 0)[..., None]
    q = draft_probs.gather(-1, safe)[..., 0].double()
    p = target_probs[:, :n].gather(-1, safe)[..., 0].double()
    u = _sampling.philox_uniform(seed, offset, rows[:, None], 1 + 2 * steps) if given is None else given[:, :n, 0]
    decided = inside & ~q.isnan() & ~p.isnan()
    accepted = decided & (u * q < p)
    count = accepted.long().cumprod(-1).sum(-1)

    target = target_probs[rows, count].double()
    draft = torch.cat([draft_probs, torch.zeros_like(target_probs[:, :1])], 1)[rows, count].double()
    weights = (target - draft).clamp(min=0)
    weights = torch.where(weights.sum(-1, keepdim=True) == 0, target, weights)
    u = _sampling.philox_uniform(seed, offset, rows, 2 + 2 * count) if given is None else given[rows, count, 1]
    token = _sampling.draw(weights, u)
    total = weights.sum(-1)
    at = torch.cat([decided, torch.ones_like(decided[:, :1]) if n else decided.new_ones(b, 1)], 1)
    valid = at[rows, count] & (total > 0) & total.isfinite()
    if strict:
        _sampling.answered("target_probs", _ANSWER, valid)
    token = torch.where(valid, token, -1)

    position = torch.arange(n + 1, device=device)
    output = torch.cat([ids, ids.new_full((b, 1), -1)], 1)
    output = torch.where(position < count[:, None], output, -1)
    output[rows, count] = token
    return output, count
