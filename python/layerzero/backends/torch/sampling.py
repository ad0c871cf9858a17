"""Sampling operations as torch expressions, for devices without own kernels; nothing synchronizes.

They use few launches, because each costs more on the host than a small kernel takes. A row's random number u is
compared with cumulative sums in float64 of weights in vocabulary order, as the definitions say; weights are at least
float32.

On a CUDA device no value is read. A `uniform` outside [0, 1) is clamped; rows whose parameters a call on the CPU would
refuse (row_k of 0) return -1.
"""

from typing import Any

import torch

from layerzero import _layerzero
from layerzero.errors import KernelExecutionError
from layerzero.host.policy import is_strict
from layerzero.torch.references import reference_helpers

_LARGEST_TOP = 2048  # torch.topk of more is not faster than a sort
_LONG = 1000  # from this row length on CUDA's torch.topk kept equal values in index order; at 6 it does not
_SHORT = 4096  # up to this row length one cumulative sum is faster than two over blocks
_BLOCKS = (512, 256, 128, 64)
_INF = float("inf")


def sample_topk(logits, k, temperature, seed, offset, row_k, row_temperature, uniform):
    call = _Call("sample_topk", logits, temperature, row_temperature, seed, offset, uniform)
    return call.run(call.number("k", k, row_k), None, None)


def sample_topp(logits, p, temperature, seed, offset, row_p, row_temperature, uniform):
    call = _Call("sample_topp", logits, temperature, row_temperature, seed, offset, uniform)
    return call.run(None, call.number("p", p, row_p), None)


def sample_minp(logits, min_p, temperature, seed, offset, row_min_p, row_temperature, uniform):
    call = _Call("sample_minp", logits, temperature, row_temperature, seed, offset, uniform)
    return call.run(None, None, call.number("min_p", min_p, row_min_p))


def sample_topk_topp(logits, k, p, temperature, seed, offset, row_k, row_p, row_temperature, uniform):
    call = _Call("sample_topk_topp", logits, temperature, row_temperature, seed, offset, uniform)
    return call.run(call.number("k", k, row_k), call.number("p", p, row_p), None)


_VALID = {
    "k": (lambda v: v >= 1, "at least 1"),
    "p": (lambda v: (v >= 0) & (v <= 1), "numbers in [0, 1]"),
    "min_p": (lambda v: (v >= 0) & (v <= 1), "numbers in [0, 1]"),
    "temperature": (lambda v: v.isfinite() & (v > 0), "numbers above 0"),
    "uniform": (lambda v: (v >= 0) & (v < 1), "numbers in [0, 1)"),  # in every kind of call
}


class _Call:
    """One sample_* call: its rows, and which of them have valid parameters."""

    def __init__(self, name, logits, temperature, row_temperature, seed, offset, uniform):
        self.name, self.shape, self.vocab = name, logits.shape[:-1], logits.shape[-1]
        self.x = logits.reshape(self.shape.numel(), self.vocab)
        self.valid: Any = None  # (rows, 1); None: all
        self.temperature = self.number("temperature", temperature, row_temperature)
        if uniform is None:
            self.u = philox(seed, offset, len(self.x), 0, 1, logits.device)
        else:
            self.u = numbers(name, uniform).reshape(-1, 1)

    def number(self, name, value, rows):
        """Returns the parameter of all rows, or a column with one per row."""
        if rows is None:
            return value
        column = rows.reshape(-1, 1)
        valid = _VALID[name][0](column)
        if column.is_cuda:
            self.valid = valid if self.valid is None else self.valid & valid
        elif not bool(valid.all()):
            raise KernelExecutionError(f"{self.name}: row_{name}", _VALID[name][1], str(column[~valid].tolist()))
        return column if name == "k" else column.double()

    def run(self, k, p, min_p):
        if isinstance(p, float) and p in (0.0, 1.0):  # only the best token, or all
            k, p = (k, None) if p == 1.0 else (1, None)
        if isinstance(k, int) and k >= self.vocab:
            k = None
        if self.x.numel() == 0:
            token, valid = self.x.new_full((len(self.x), 1), -1, dtype=torch.int64), None
        elif isinstance(k, int) and k == 1 or self.vocab == 1:
            best, token = self.x.max(-1, keepdim=True)
            valid = best > -_INF  # False for NaN
        elif isinstance(k, int) and k <= _LARGEST_TOP:
            token, valid = self.among_top(k, p)
        elif k is not None or p is not None:
            token, valid = self.sorted(k, p)
        else:
            token, valid = self.above(min_p)
        if self.valid is not None:
            valid = self.valid if valid is None else self.valid & valid
        if valid is not None:
            token = torch.where(valid, token, -1)
        if is_strict():
            answered(self.name, "logits", "a logit above -inf and no NaN in every row in strict mode", token >= 0)
        return token.reshape(self.shape)

    def among_top(self, k, p):
        """Keeps the k largest logits of each row, and of these the top-p set."""
        top, index = largest(self.x, k)
        w = self.probabilities(top)
        if p is not None:
            p = p.clamp(min=1e-300) if isinstance(p, torch.Tensor) else p  # keep at least the best
            w.masked_fill_(w.cumsum(-1) - w >= p, 0)
        index, order = index.sort(-1)
        return index.gather(-1, first_above(w.gather(-1, order), self.u)), top[:, :1] > -_INF

    def sorted(self, k, p):
        """Keeps the top-p set of each row's k largest logits, with a full sort."""
        top, index = torch.sort(self.x, dim=-1, descending=True, stable=True)
        w = self.weights(top, top[:, :1])
        place = torch.arange(self.vocab, device=w.device)
        if k is not None:
            w.masked_fill_(place >= k, 0)
        if p is not None:
            w.masked_fill_(place > first_above(w, p, or_equal=True), 0)
        w = torch.empty_like(w).scatter_(-1, index, w)
        return first_above(w, self.u), top[:, :1] > -_INF

    def above(self, min_p):
        """Keeps every token whose weight is at least min_p; the largest weight is 1."""
        top = self.x.amax(-1, keepdim=True)
        w = self.weights(self.x, top)
        if min_p is not None:
            w.masked_fill_(w < min_p, 0)
        return first_above(w, self.u), top > -_INF

    def weights(self, x, top):
        """Returns exp((x - top) / temperature), 1 at the largest logits, also infinite ones; never NaN."""
        top = top if x.dtype == torch.float64 else top.float()  # and so is every difference
        if isinstance(self.temperature, torch.Tensor) or self.temperature > 1e30:
            # Differences of finite logits may overflow, those of their halves cannot.
            w, half = torch.add(top * -0.5, x, alpha=0.5), self.temperature * 0.5
            w.div_(half.to(w.dtype) if isinstance(half, torch.Tensor) else half)
        else:
            w = x - top
            if self.temperature != 1.0:
                w.div_(max(self.temperature, torch.finfo(w.dtype).tiny))
        return w.exp_().nan_to_num_(nan=1.0)

    def probabilities(self, x):
        """Returns the softmax of few columns in float64; never NaN."""
        if x.dtype == torch.float64:
            return torch.softmax(self.weights(x, x[:, :1]).log_(), -1)
        # Infinities become numbers far beyond float32; clamping temperatures to these bounds changes nothing.
        x = x.double().nan_to_num_(nan=0.0, posinf=1e150, neginf=-1e190)
        if isinstance(self.temperature, torch.Tensor):
            x.div_(self.temperature.clamp(1e-100, 1e100))
        elif self.temperature != 1.0:
            x.div_(min(max(self.temperature, 1e-100), 1e100))
        return torch.softmax(x, -1)


def largest(x, k):
    """Returns the k largest of each row in descending order with their indices, ties to the lower index."""
    if x.is_cuda and x.shape[-1] >= _LONG:
        return torch.topk(x, k)  # on CUDA it keeps index order of equal values in long rows
    values, index = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[:, :k], index[:, :k]


def first_above(w, u, or_equal=False):
    """Returns the first index of each row (rows, 1) whose cumulative sum exceeds u times the row's sum."""
    rows, n = w.shape
    if rows == 1 or n <= _SHORT:
        sums = w.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(sums, sums[:, -1:] * u, right=not or_equal).clamp_(max=n - 1)
    size = next((b for b in _BLOCKS if n % b == 0), _BLOCKS[-1])
    if n % size:
        w = torch.nn.functional.pad(w, (0, -n % size))
    blocks = w.view(rows, -1, size)
    sums = blocks.sum(-1, dtype=torch.float64)
    ends = sums.cumsum(-1)
    target = ends[:, -1:] * u
    block = torch.searchsorted(ends, target, right=not or_equal).clamp_(max=ends.shape[1] - 1)
    inside = blocks.gather(1, block[..., None].expand(rows, 1, size))[:, 0].cumsum(-1, dtype=torch.float64)
    rest = target - (ends - sums).gather(-1, block)
    return torch.searchsorted(inside, rest, right=not or_equal).add_(block, alpha=size).clamp_(max=n - 1)


def numbers(name, uniform):
    """Returns the caller's random numbers in float64."""
    if not uniform.is_cuda:
        valid = _VALID["uniform"][0](uniform)
        if not bool(valid.all()):
            raise KernelExecutionError(f"{name}: uniform", _VALID["uniform"][1], str(uniform[~valid].tolist()))
    return uniform.double()


def philox(seed, offset, rows, first_slot, slots, device):
    """Returns the random numbers (rows, slots) of a seed and an offset, of slots from first_slot on
    (ops/common/philox.h)."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():  # a graph may not contain host memory
        place = torch.arange(rows * slots, device=device).view(rows, slots)
        uniform = reference_helpers("sampling").philox_uniform
        return uniform(seed, offset, place // slots, first_slot + place % slots)
    memory = _layerzero.philox(seed, offset, rows, first_slot, slots)
    drawn = torch.frombuffer(memory, dtype=torch.float64) if memory else torch.empty(0, dtype=torch.float64)
    return drawn.view(rows, slots).to(device, non_blocking=True)


def answered(name, parameter, wanted, valid):
    """In strict mode refuses rows without a result; in a captured graph the device raises the error at replay."""
    everything = valid.all()
    if valid.is_cuda and torch.cuda.is_current_stream_capturing():
        torch._assert_async(everything, f"{name}: {parameter}: wanted {wanted}")
    elif not bool(everything):
        raise KernelExecutionError(f"{name}: {parameter}", wanted, f"none in rows {(~valid).nonzero()[:, 0].tolist()}")


def speculative_sample(draft_probs, draft_token_ids, target_probs, seed, offset, uniform):
    (b, n, vocab), device = draft_probs.shape, draft_probs.device
    if uniform is None:
        u = philox(seed, offset, b, 1, 2 * n + 2, device).view(b, n + 1, 2)
    else:
        u = numbers("speculative_sample", uniform)
    ids, position = draft_token_ids.long(), torch.arange(n + 1, device=device)
    if b == 0 or vocab == 0:
        count = ids.new_zeros(b)
        token, valid = ids.new_full((b, 1), -1), ids.new_zeros((b, 1), dtype=torch.bool)
    else:
        inside = (ids >= 0) & (ids < vocab)
        at = torch.where(inside, ids, 0)[..., None]
        q = draft_probs.gather(-1, at)[..., 0].double()
        p = target_probs[:, :n].gather(-1, at)[..., 0].double()
        decided = inside & (q == q) & (p == p)
        count = (decided & (u[:, :n, 0] * q < p)).long().cumprod(-1).sum(-1)
        token, valid = _after(draft_probs, target_probs, count, u, decided)
        token = torch.where(valid, token, -1)
    if is_strict():
        wanted = "mass in every row and draft ids inside the vocabulary in strict mode"
        answered("speculative_sample", "target_probs", wanted, valid)
    output = torch.cat([ids, ids.new_full((b, 1), -1)], 1)
    output = torch.where(position < count[:, None], output, -1)
    return torch.where(position == count[:, None], token, output), count


def _after(draft_probs, target_probs, count, u, decided):
    """Returns the token after the accepted drafts of each row, and whether there is one."""
    b, n, vocab = draft_probs.shape
    rows = torch.arange(b, device=count.device)
    target = target_probs[rows, count]
    target = target if target.dtype == torch.float64 else target.float()
    weights, at = target, count.new_ones((b, 1), dtype=torch.bool)
    if n:
        rejected = (count < n)[:, None]
        last = count.clamp(max=n - 1)
        draft = torch.where(rejected, draft_probs[rows, last], 0).to(target.dtype)
        rest = (target - draft).clamp_(min=0)
        weights = torch.where(rejected & (rest.sum(-1, keepdim=True) != 0), rest, target)
        at = decided[rows, last][:, None] | ~rejected
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)
    token = first_above(weights.nan_to_num_(nan=0.0), u[rows, count, 1][:, None])
    return token, at & (total > 0) & (total < _INF)
