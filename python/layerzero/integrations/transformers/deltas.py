"""Recognises layers that keep a state in place of keys and values: the gated delta rule after a causal convolution.

Columns are identified by equal numbers, the rule and its gates by a trial with made-up weights.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.arguments import MASK
from layerzero.integrations.transformers.layers import Delta, Heads, Norm, Unknown
from layerzero.integrations.transformers.recorded import Call, same

L2_EPS = 1e-6
_BETA_SCALES = (1.0, 2.0)
_conv, _rule = _layerzero.ops["causal_conv1d"], _layerzero.ops["gated_delta_rule"]


class Convolved(NamedTuple):
    """What a call of torch's convolution over one axis got: (batch, channels, positions), and its weight."""

    given: torch.Tensor
    weight: torch.Tensor


def of_layer(trace: Any) -> tuple[Delta, Call, torch.Tensor]:
    """Returns (Delta, the call that reads for it, its output rows) of a recorded layer; raises Unknown."""
    conv, rows = _convolution(trace)
    norm, out = _norm_and_out(trace)
    candidates = list(_candidates(trace, conv, rows, norm, out))
    trial = _Trial(trace.layer, conv, out.name) if candidates else None
    delta = next((delta for delta in candidates if trial is not None and trial.agrees(delta)), None)
    if delta is None:
        raise Unknown("its state is updated in a way that was not recognised")
    for call in trace.linears:
        if call.name in (*delta.linears, delta.out):
            trace.use(call)
    reader, masked = _reader(trace, delta)
    _check_cache(trace, rows, delta)
    return dataclasses.replace(delta, masked=masked), reader, out.result


# ---- parts


def _convolution(trace: Any) -> tuple[str, torch.Tensor]:
    """(path of its convolution, the rows that it read)."""
    (seen,) = trace.convolved
    for name, module in trace.layer.named_modules():
        if isinstance(module, nn.Conv1d) and module.weight.data_ptr() == seen.weight.data_ptr():
            plain = (module.stride, module.dilation, module.weight.shape[1]) == ((1,), (1,), 1)
            if plain and not structure.why_not_plain(module):
                return name, seen.given[..., -trace.given.shape[1] :].transpose(1, 2).contiguous()
    raise Unknown("its convolution mixes channels, or is no part of it")


def _norm_and_out(trace: Any) -> tuple[Call, Call]:
    """The calls of the norm with a gate, and of the linear layer that reads its output."""
    for norm in trace.calls:
        if structure.looks_like_norm(norm.module) and len(norm.further) == 1:
            for out in trace.linears:
                if norm.result.numel() == out.given.numel() and same(norm.result.reshape(out.given.shape), out.given):
                    return norm, out
    raise Unknown("what it reads of its state goes through no norm with a gate into a linear layer")


def _reader(trace: Any, delta: Delta) -> tuple[Call, bool]:
    """(the call that reads for it, as if there were no mask; whether there is one)."""
    reader, *others = (call for call in trace.linears if call.name in delta.linears)
    if not all(same(call.given, reader.given) for call in others):
        raise Unknown("the linear layers before its state read different rows")
    mask = trace.arguments.get(MASK)
    sources = [(call.result, call.own[1]) for call in trace.all_norms] + [(trace.given, trace.given)]
    for rows, own in sources:
        if same(rows, reader.given):
            return reader, False
        masks = isinstance(mask, torch.Tensor) and mask.shape == rows.shape[:2]
        if masks and same((rows * mask[..., None]).to(rows.dtype), reader.given):
            return reader._replace(given=rows, own=(own, reader.own[1])), True
    raise Unknown("the linear layers before its state read rows that were not recognised")


# ---- what it may be


def _candidates(trace: Any, conv: str, rows: torch.Tensor, norm: Call, out: Call) -> Iterator[Delta]:
    offset, reason = structure.gated_norm_of(norm.module)
    if reason:
        raise Unknown(f"{norm.name}: {reason}")
    made = Norm(norm.name, "rms_norm", structure.eps_of(norm.module), offset)
    size = norm.given.shape[-1]
    number = out.given.shape[-1] // size
    keys = rows.shape[-1] - number * size
    if keys <= 0 or keys % 2:
        return
    columns = *rows.split([keys // 2, keys // 2, number * size], -1), norm.further[0].reshape(*rows.shape[:2], -1)
    parts = [part for part in (_located(trace, each) for each in columns) if part is not None]
    if len(parts) != len(columns):
        return
    query, key, value, gate = parts
    holder, _, _ = conv.rpartition(".")
    taps = trace.layer.get_submodule(conv).weight.shape[-1]
    # Many heads first: a trial costs the less, the smaller a state is.
    for heads in (n for n in range(number, 0, -1) if number % n == 0 and keys // 2 % n == 0):
        for beta, g, a_log, dt_bias, scale in _gates(trace, holder, set(parts), number, heads):
            yield Delta(
                query, key, value, gate, g, beta,
                heads=(heads, keys // 2 // heads), value_heads=(number, size), conv=conv, taps=taps,
                a_log=(holder, a_log), dt_bias=(holder, dt_bias), norm=made, out=out.name,
                beta_scale=scale, masked=False,
            )  # fmt: skip


def _gates(trace: Any, path: str, parts: set[Heads], number: int, heads: int) -> Iterator[Any]:
    """(beta, decay, a_log, dt_bias, beta_scale): columns of what is left of the linear layers, and two vectors."""
    held = {name: tensor for name, tensor in trace.layer.get_submodule(path)._parameters.items() if tensor is not None}
    if [tensor.shape for tensor in held.values()] != [(number,)] * 2:
        raise Unknown("its gates are not of two vectors with a number for each head")
    taken, each = {part.linear for part in parts}, number // heads
    free = [call for call in trace.linears if call.name not in taken]
    pairs = [
        [Heads(call.name, at * width, n, width, 2 * width) for at in (0, 1)]
        for call in free
        if call.result.shape[-1] == 2 * number
        for n, width in {(1, number), (heads, each)}
    ]
    whole = [Heads(call.name, 0, 1, number, number) for call in free if call.result.shape[-1] == number]
    for pair in [*pairs, *itertools.combinations(whole, 2)]:
        for (beta, g), names in itertools.product(itertools.permutations(pair), itertools.permutations(held)):
            for scale in _BETA_SCALES:
                yield beta, g, *names, scale


def _located(trace: Any, wanted: torch.Tensor) -> Heads | None:
    """Returns the position of columns (batch, length, n) in a linear layer's output; None if they are not in it."""
    for call in trace.linears:
        if call.result.shape[:-1].numel() == wanted.shape[:-1].numel():
            places = {column: place for place, column in enumerate(_columns(call.result))}
            found = [places.get(column, -1) for column in _columns(wanted)]
            if -1 not in found:
                return _as_heads(call.name, found)
    return None


def _columns(rows: torch.Tensor) -> list[bytes]:
    columns = rows.reshape(-1, rows.shape[-1]).t().contiguous()
    return [column.tobytes() for column in columns.view(torch.uint8).numpy()]


def _as_heads(linear: str, places: list[int]) -> Heads | None:
    """Columns at these places as equal runs, equally far apart."""
    size = next((i for i in range(1, len(places)) if places[i] != places[i - 1] + 1), len(places))
    heads, rest = divmod(len(places), size)
    step = places[size] - places[0] if heads > 1 else size
    regular = [places[0] + i * step + j for i in range(heads) for j in range(size)]
    return Heads(linear, places[0], heads, size, step) if not rest and regular == places else None


# ---- whether it is that


class _Trial:
    """The module around a convolution, in float32 and with weights made up, and what it makes of rows."""

    def __init__(self, layer: nn.Module, conv: str, out: str) -> None:
        self.path, _, _ = conv.rpartition(".")
        if not self.path or not out.startswith(f"{self.path}."):
            raise Unknown("no module has both its convolution and the linear layer after its state")
        self.module: Any = copy.deepcopy(layer.get_submodule(self.path)).to("cpu", torch.float32)
        with torch.no_grad(), structure.evaluating(self.module):
            for seed, parameter in enumerate(self.module.parameters()):
                inputs = parameter[0].numel() if parameter.dim() > 1 else 4
                parameter.copy_(structure.normal(*parameter.shape, seed=seed) * inputs**-0.5)
            width = self.part(out).out_features
            self.rows = structure.normal(2, 7, width, seed=9)
            self.rows[1] *= 3e-4  # keys so short that their norm shows what is added to it
            self.expected = structure.result_of(type(self.module).forward, self.module, self.rows)
        self.results: dict[str, torch.Tensor] = {}  # of its linear layers, by path

    def part(self, path: str) -> Any:
        return self.module if path == self.path else self.module.get_submodule(path[len(self.path) + 1 :])

    def agrees(self, delta: Delta) -> bool:
        if self.expected is None or not all(name.startswith(f"{self.path}.") for name in delta.linears):
            return False
        with torch.no_grad():
            for name in delta.linears:
                if name not in self.results:
                    self.results[name] = self.part(name)(self.rows)
            taken = functools.partial(_taken, self.results)
            rows = torch.cat([taken(part) for part in (delta.query, delta.key, delta.value)], dim=-1)
            read, _ = _run(self.part, delta, rows, taken(delta.decay), taken(delta.beta))
            size = delta.value_heads[1]
            normed = self.part(delta.norm.name)(read.reshape(-1, size), taken(delta.gate).reshape(-1, size))
            return structure.agrees_by_row(self.part(delta.out)(normed.reshape(*rows.shape[:2], -1)), self.expected)


def _taken(results: dict[str, torch.Tensor], part: Heads) -> torch.Tensor:
    """(batch, length, heads * size) columns of what a linear layer gave."""
    rows = results[part.linear].contiguous()
    shape = (*rows.shape[:2], part.heads, part.size)
    return rows.as_strided(shape, (*rows.stride()[:2], part.step, 1), part.column).flatten(-2)


def _run(part: Any, delta: Delta, rows: Any, g: Any, beta: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(what is read of the state, the last state) of a text: of the rows that go into the convolution, and logits.

    part: returns the module at a path.
    """
    conv, held = part(delta.conv), part(delta.a_log[0])._parameters
    bias = None if conv.bias is None else conv.bias.detach()
    state = rows.new_zeros(rows.shape[0], rows.shape[-1], delta.taps)
    mixed = _conv(rows, conv.weight.detach().squeeze(1), state, bias=bias, activation="silu")
    (heads, key), (number, size) = delta.heads, delta.value_heads
    q, k, v = mixed.split([heads * key, heads * key, number * size], -1)
    state = torch.zeros(rows.shape[0], number, key, size, dtype=torch.float32, device=rows.device)
    a_log, dt_bias = (held[name].detach() for _, name in (delta.a_log, delta.dt_bias))
    further = {"a_log": a_log, "dt_bias": dt_bias, "l2_eps": L2_EPS, "beta_scale": delta.beta_scale}
    q, k, v = q.unflatten(-1, (heads, key)), k.unflatten(-1, (heads, key)), v.unflatten(-1, (number, size))
    return _rule(q, k, v, g, beta, state, **further), state


def _check_cache(trace: Any, rows: torch.Tensor, delta: Delta) -> None:
    """Its cache keeps the rows that the convolution reads again, and the state."""
    layers = getattr(trace.arguments.get(trace.cache), "layers", ())
    index = getattr(trace.layer.get_submodule(delta.a_log[0]), "layer_idx", -1)
    layer: Any = layers[index] if 0 <= index < len(layers) else None
    if type(layer) is not LinearAttentionLayer:
        raise Unknown("its state is kept in a cache of another kind")
    results = {
        call.name: call.result.reshape(*rows.shape[:2], -1) for call in trace.linears if call.name in delta.linears
    }
    g, beta = (_taken(results, part) for part in (delta.decay, delta.beta))
    _, state = _run(trace.layer.get_submodule, delta, rows, g, beta)
    before = nn.functional.pad(rows.transpose(1, 2), (delta.taps, 0))[..., -delta.taps :]
    kept: Any = layer.conv_states[0]
    last: Any = layer.recurrent_states[0]
    fits = kept.shape == before.shape and torch.equal(kept, before) and last.dtype == state.dtype
    if not fits or not structure.agrees(state.to(rows.dtype), last.to(rows.dtype)):
        raise Unknown("its cache keeps something else than the state and the rows before")
