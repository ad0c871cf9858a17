"""The gated delta rule in place of attention: whether a description of a layer is what its code computes, tried with
made-up weights, and what its cache keeps.
"""

import copy
import functools
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import LinearAttentionLayer

from layerzero import _layerzero
from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.layers import L2_EPS, Delta, Heads, Unknown

_conv, _rule = _layerzero.ops["causal_conv1d"], _layerzero.ops["gated_delta_rule"]


class Trial:
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


def check_cache(
    layer: nn.Module, kept: Any, results: dict[str, torch.Tensor], rows: torch.Tensor, delta: Delta
) -> None:
    """Raises Unknown unless `kept`, a layer's part of a cache, is the rows that the convolution reads again, and the state.

    results: what linear layers gave, by path; rows: what the convolution read, (batch, positions, channels).
    """
    if type(kept) is not LinearAttentionLayer:
        raise Unknown("its state is kept in a cache of another kind")
    g, beta = (_taken(results, part) for part in (delta.decay, delta.beta))
    _, state = _run(layer.get_submodule, delta, rows, g, beta)
    before = nn.functional.pad(rows.transpose(1, 2), (delta.taps, 0))[..., -delta.taps :]
    states: Any = kept.conv_states[0]
    last: Any = kept.recurrent_states[0]
    fits = states.shape == before.shape and torch.equal(states, before) and last.dtype == state.dtype
    if not fits or not structure.agrees(state.to(rows.dtype), last.to(rows.dtype)):
        raise Unknown("its cache keeps something else than the state and the rows before")
