"""Shared by the torch references of the sampling operations: Philox draws and filtered sampling, in float64."""

import torch

_MASK32 = 0xFFFFFFFF


def philox_uniform(seed, offset, rows, slot=0):
    """Draws in [0, 1) as float64 for int64 tensors `rows` and `slot`: ops/common/philox.h, in int64 arithmetic."""
    rows, slot = torch.broadcast_tensors(rows, torch.as_tensor(slot, device=rows.device))
    c = [torch.full_like(rows, offset & _MASK32), torch.full_like(rows, offset >> 32 & _MASK32), rows & _MASK32, slot]
    key = [seed & _MASK32, seed >> 32 & _MASK32]
    for _ in range(10):
        # The product wraps modulo 2^64; both halves are taken with a mask.
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        hi0, hi1 = p0 >> 32 & _MASK32, p1 >> 32 & _MASK32
        c = [hi1 ^ c[1] ^ key[0], p1 & _MASK32, hi0 ^ c[3] ^ key[1], p0 & _MASK32]
        key = [key[0] + 0x9E3779B9 & _MASK32, key[1] + 0xBB67AE85 & _MASK32]
    return (c[0] << 21 | c[1] >> 11).double() * 2.0**-53


def given_uniform(uniform):
    """The caller's draws in float64. Draws outside [0, 1) are refused; on a CUDA device, which is not read, clamped."""
    uniform = uniform.double()
    if uniform.is_cuda:
        return uniform.nan_to_num(0.0).clamp(0.0, 1 - 2.0**-53)
    valid = (uniform >= 0) & (uniform < 1)
    if not bool(valid.all()):
        raise ValueError(f"uniform: wanted numbers in [0, 1), got {uniform[~valid].tolist()}")
    return uniform


def draw(weights, u):
    """First index of each row whose running sum of `weights` exceeds u times the row's sum."""
    sums = weights.cumsum(-1)
    return (sums <= u[:, None] * sums[:, -1:]).sum(-1)


def column(value, rows, like, default):
    """The filter of each row: the number `value` or the tensor `rows`, as a column that broadcasts to `like`'s rows."""
    if rows is not None:
        return rows.reshape(like.shape[0], 1).to(like.device)
    return torch.full((like.shape[0], 1), default if value is None else value, device=like.device)


def _checked(name, values, valid, wanted):
    if not bool(valid.all()):
        raise ValueError(f"row_{name}: wanted {wanted}, got {values[~valid].tolist()}")
    return values.double()


def answered(name, wanted, valid):
    """Raises in strict mode if a row has no token."""
    if not bool(valid.all()):
        raise ValueError(f"{name}: wanted {wanted}, got none in rows {(~valid).nonzero().flatten().tolist()}")


def sample(
    logits,
    *,
    k=None,
    p=None,
    min_p=None,
    temperature=1.0,
    seed=None,
    offset=0,
    uniform=None,
    row_k=None,
    row_p=None,
    row_min_p=None,
    row_temperature=None,
    strict=False,
):
    vocab = logits.shape[-1]
    x = logits.double().reshape(logits.shape[:-1].numel(), vocab)
    rows = torch.arange(x.shape[0], device=x.device)
    valid = ~x.isnan().any(-1) & (x > -torch.inf).any(-1)
    if strict:
        answered("logits", "a logit above -inf and no NaN in every row in strict mode", valid)
    k = column(k, row_k, x, max(vocab, 1))
    p = column(p, row_p, x, 1.0)
    min_p = column(min_p, row_min_p, x, 0.0)
    temperature = column(temperature, row_temperature, x, 1.0)
    k = _checked("k", k, k >= 1, "at least 1")
    p = _checked("p", p, (p >= 0) & (p <= 1), "numbers in [0, 1]")
    min_p = _checked("min_p", min_p, (min_p >= 0) & (min_p <= 1), "numbers in [0, 1]")
    temperature = _checked("temperature", temperature, temperature.isfinite() & (temperature > 0), "numbers above 0")
    u = philox_uniform(seed, offset, rows) if uniform is None else given_uniform(uniform).flatten()
    if vocab == 0:
        return torch.full(logits.shape[:-1], -1, dtype=torch.int64, device=x.device)
    x = torch.where(valid[:, None], x, 0.0)
    top = x.amax(-1, keepdim=True)
    weights = torch.where(x == top, 1.0, ((x / 2 - top / 2) / temperature * 2).exp())
    order = x.sort(dim=-1, descending=True, stable=True).indices
    ordered = weights.gather(-1, order)
    keep = torch.arange(vocab, device=x.device) < k
    ordered = torch.where(keep, ordered, 0.0)
    sums = ordered.cumsum(-1)
    keep[:, 1:] &= (sums[:, :-1] < p * sums[:, -1:]) | (p == 1)
    keep[:, 1:] &= ordered[:, 1:] >= min_p
    kept = torch.zeros_like(keep).scatter(-1, order, keep)
    token = draw(torch.where(kept, weights, 0.0), u)
    return torch.where(valid, token, -1).reshape(logits.shape[:-1])
