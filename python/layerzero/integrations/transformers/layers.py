"""What one layer of a model computes, as data: its linear layers and norms in their places, and the constants.

Modules are named by their paths within the layer, so a description holds for any copy of the model and can be pickled.

    attention = out(attention(q, k, v)) of its source; cross alike, with keys and values of an encoder's rows
    delta, in its place = out(norm(gated_delta_rule(causal_conv1d(q, k, v), g, beta)) * silu(gate)) over a state
    mlp = out(activation(gate) * up), out(activation(up)), or the weighted sum of the chosen experts' own
    sequential: stream += factor * after(attention(before(stream))), `behind` normalises the sum; cross and mlp alike
    parallel:   both read the stream that the layer got
"""

import dataclasses
import itertools
from typing import Any, ClassVar, NamedTuple

import torch

L2_EPS = 1e-6  # of the norm of queries and keys of a delta rule


class Unknown(Exception):
    """Why layers are not what the operations compute."""


class Unshown(Unknown):
    """The values of the weights do not show it; those of another model of this structure may."""


class NotReached(Unknown):
    """A small input does not reach them, or the model does not run on it."""


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm by its operation, rms_norm or layer_norm; `offset` is added to its weight. Or, by the operation elementwise, a
    factor for each column: the module's parameter `vector`.
    """

    name: str
    operation: str
    eps: float = 0.0
    offset: float = 0.0
    vector: str | None = None


@dataclasses.dataclass(frozen=True)
class Columns:
    """`width` columns of a linear layer's output, from `column` on."""

    linear: str
    column: int
    width: int


@dataclasses.dataclass(frozen=True)
class Heads:
    """Queries, keys or values: columns of a linear layer, `step` apart from head to head.

    groups: the number of parts of heads, each like this, `group_step` apart; with a step of 0 all have the same columns.
    norm: of each head, or, `whole`, of all columns at once; before a rotation, or after it (`behind`). clip: bounds of what is
    normalised, before a rotation. factor: of the result.
    """

    linear: str
    column: int
    heads: int
    size: int
    step: int
    norm: Norm | None = None
    whole: bool = False
    behind: bool = False
    factor: float = 1.0
    groups: int = 1
    group_step: int = 0
    clip: tuple[float, float] | None = None

    @property
    def starts(self) -> list[int]:
        """The first column of each head."""
        inner = range(self.heads // self.groups)
        return [self.column + g * self.group_step + i * self.step for g in range(self.groups) for i in inner]

    @property
    def is_plain(self) -> bool:
        """All columns of a linear layer, as they are."""
        return self == Heads(self.linear, 0, self.heads, self.size, self.size)


class Table(NamedTuple):
    """A buffer of a module within a layer, with a row for each position: sines and cosines, or the other way round."""

    module: str
    name: str
    cosines_first: bool

    def at(self, buffer: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) of positions."""
        first, second = buffer[positions].chunk(2, dim=-1)
        return (first, second) if self.cosines_first else (second, first)


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotation by tables of which the first `width` columns are read: those that layers are given, cosines before sines
    unless `sines_first`, or `table`.
    """

    interleaved: bool
    rotary_dim: int
    width: int
    table: Table | None = None
    sines_first: bool = False


@dataclasses.dataclass(frozen=True)
class Alibi:
    """A bias of scores that a layer is given as `argument`: slopes by distance, one for each head, where they are known.

    inverted: a boolean mask passed with it is True for hidden keys.
    """

    argument: str
    slopes: tuple[float, ...] | None
    inverted: bool


@dataclasses.dataclass(frozen=True)
class Latent:
    """Keys and values of all heads as products of one row. `down` computes `width` columns, which go through `norm` and then
    `up`, and `shared` more, which are rotated and end each head's key. `up` computes for each head `unturned` columns of
    its key and `size` of its value.

    gathers: neighbours become columns half a row apart before the rotation. query_down, query_norm: what the queries'
    linear layer reads, where that is not what `down` reads.
    """

    down: str
    width: int
    shared: int
    unturned: int
    size: int
    norm: Norm
    up: str
    gathers: bool
    query_down: str | None = None
    query_norm: Norm | None = None


@dataclasses.dataclass(frozen=True)
class Attention:
    """gate: what is mixed is multiplied with the sigmoid of these columns. mixed: a norm of it. needs_mask: that alone makes
    it causal. masked_window: the window that masks alone have.
    """

    query: Heads
    key: Heads
    value: Heads
    out: str
    scale: float
    causal: bool
    rope: Rope | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: tuple[str, str] | None = None  # the module and its one parameter: a logit for each head
    alibi: Alibi | None = None
    latent: Latent | None = None
    gate: Heads | None = None
    mixed: Norm | None = None
    needs_mask: bool = False
    masked_window: int | None = None

    @property
    def window_of_pages(self) -> int | None:
        """Attention over pages takes no mask, so it has the window that masks have otherwise."""
        return self.masked_window if self.window is None else self.window

    @property
    def linears(self) -> tuple[str, ...]:
        """Those that read what the attention reads, each once, in the order of their use."""
        if self.latent is not None:
            return self.latent.query_down or self.query.linear, self.latent.down
        parts = (self.query, self.key, self.value, self.gate)
        return tuple(dict.fromkeys(part.linear for part in parts if part is not None))

    @property
    def modules(self) -> tuple[str, ...]:
        """All whose parameters it computes with, but for norms."""
        further = (self.query.linear, self.key.linear)  # of latents they read no rows of the stream
        sinks = () if self.sinks is None else (self.sinks[0],)
        return tuple(dict.fromkeys((*self.linears, *further, self.out, *sinks)))

    @property
    def norms(self) -> tuple[Norm | None, ...]:
        latent = () if self.latent is None else (self.latent.norm, self.latent.query_norm)
        return self.query.norm, self.key.norm, self.mixed, *latent


@dataclasses.dataclass(frozen=True)
class Delta:
    """In the place of an Attention: the gated delta rule, over a state in place of keys and values.

    query, key, value: what goes through the convolution of the module `conv`, in this order, as they are stored in linear layers;
    heads and value_heads: (number, size) of what comes out of it. gate: what is normalised is multiplied with its silu.
    decay, beta: logits. a_log, dt_bias: (module, its parameter). masked: rows of padding are zeros before all that.
    """

    query: Heads
    key: Heads
    value: Heads
    gate: Heads
    decay: Heads
    beta: Heads
    heads: tuple[int, int]
    value_heads: tuple[int, int]
    conv: str
    taps: int
    a_log: tuple[str, str]
    dt_bias: tuple[str, str]
    norm: Norm
    out: str
    beta_scale: float
    masked: bool

    # What else is asked of an Attention.
    causal: ClassVar[bool] = True
    needs_mask: ClassVar[bool] = False
    rope: ClassVar[None] = None
    window: ClassVar[None] = None
    window_of_pages: ClassVar[None] = None
    alibi: ClassVar[None] = None
    latent: ClassVar[None] = None

    @property
    def linears(self) -> tuple[str, ...]:
        parts = (self.query, self.key, self.value, self.gate, self.decay, self.beta)
        return tuple(dict.fromkeys(part.linear for part in parts))

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.linears, self.conv, self.a_log[0], self.dt_bias[0], self.out)))

    @property
    def norms(self) -> tuple[Norm | None, ...]:
        return (self.norm,)

    @property
    def channels(self) -> int:
        return sum(part.heads * part.size for part in (self.query, self.key, self.value))


@dataclasses.dataclass(frozen=True)
class Bias:
    """Of attention scores, by distance: what `compute_bias` of the module `name` makes of the embedding `table`."""

    name: str
    table: str


@dataclasses.dataclass(frozen=True)
class Mlp:
    """operation: swiglu, geglu or activation, whose result is multiplied with `up` where there is a gate; kind: what the
    latter two are known. norm: of what `out` reads.
    """

    up: Columns
    out: str
    operation: str
    kind: str | None = None
    gate: Columns | None = None
    norm: Norm | None = None

    @property
    def linears(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.linear for part in (self.gate, self.up) if part is not None))

    @property
    def modules(self) -> tuple[str, ...]:
        return (*self.linears, self.out)


class Route(NamedTuple):
    """The arguments of `moe_route`. correction: (module, name) of the tensor that is added to the scores for the choice.

    wide: the logits are made in float32 whatever the weights are.
    """

    scoring: str
    renormalize: bool
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    min_sum: float = 0.0
    jitter: float = 0.0
    correction: tuple[str, str] | None = None
    wide: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """But for the tensors."""
        return dict(itertools.islice(self._asdict().items(), 8))


@dataclasses.dataclass(frozen=True)
class Gate:
    """What experts make of gate and up, by the names that the operations have for it."""

    activation: str
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    interleaved: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Experts:
    """In the place of an Mlp: the weighted sum of `chosen` experts, whose weights one module holds.

    router: the module whose weight makes logits. transposed: weights are stored as [experts, inputs, outputs]. shared: an
    MLP for all rows, which is added, times the sigmoid of the linear layer `shared_gate` where there is one.
    """

    name: str
    router: str
    chosen: int
    route: Route
    gate: Gate
    transposed: bool = False
    shared: Mlp | None = None
    shared_gate: str | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        gate = () if self.shared_gate is None else (self.shared_gate,)
        return (self.router, self.name, *gate, *(self.shared.modules if self.shared else ()))


@dataclasses.dataclass(frozen=True)
class Norms:
    """Norms of a part of a layer: of its input, of its output, and of the stream to which that was added."""

    before: Norm | None = None
    after: Norm | None = None
    behind: Norm | None = None


@dataclasses.dataclass(frozen=True)
class Layer:
    """index: in the cache. group: layers of one group get the same mask, tables and bias; the first layer of it has the `bias`.

    transposed: linear layers whose weights are stored as [inputs, outputs].
    """

    attention: Attention | Delta
    mlp: Mlp | Experts
    attention_norms: Norms
    mlp_norms: Norms
    parallel: bool = False
    factor: float = 1.0
    index: int = 0
    group: int = 0
    transposed: tuple[str, ...] = ()
    cross: Attention | None = None
    cross_norms: Norms = Norms()
    bias: Bias | None = None

    @property
    def norms(self) -> tuple[Norm, ...]:
        parts = (self.attention_norms, self.cross_norms, self.mlp_norms)
        found = [norm for part in parts for norm in (part.before, part.after, part.behind)]
        found += self.attention.norms
        found += [] if self.cross is None else [self.cross.query.norm]
        dense = self.mlp.shared if isinstance(self.mlp, Experts) else self.mlp
        found += [] if dense is None else [dense.norm]
        return tuple(norm for norm in found if norm is not None)

    @property
    def modules(self) -> tuple[str, ...]:
        """All whose parameters the layer computes with, but for norms."""
        cross = () if self.cross is None else (*self.cross.linears, self.cross.out)
        bias = () if self.bias is None else (self.bias.table,)
        return (*self.attention.modules, *cross, *self.mlp.modules, *bias)


class Unread(NamedTuple):
    """An argument of layers, and the kind of tensor that it has to be: code may read another kind."""

    argument: str
    kind: Any

    def is_given(self, arguments: dict[str, Any]) -> bool:
        return kind_of(arguments.get(self.argument)) == self.kind


def kind_of(value: Any) -> Any:
    """(axes, dtype, with all of floating point alike) of a tensor; None of anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    return value.dim(), "floating point" if value.is_floating_point() else str(value.dtype)


@dataclasses.dataclass(frozen=True)
class Stack:
    """All layers of a model: `holder` is the path of the module whose forward calls those of its list `name`.

    cache: the argument by which a layer gets it, None in an encoder. norm: what the program of the layers ends with.
    half: whether they are the same in float16, where some clamp what they give. tuples: 0, or how many values a layer
    returns, the rows first; what the others are is known. alone: no run of the model has reached them, so that what it does
    with them is compared when it first calls them. part: the model has other layers too. attention: the implementation that the model's configuration has to name.
    unread: further tensors that the layers get and on whose numbers nothing depends. not_captured: why the model's own code
    runs around them, so that on a CUDA device its steps are no graphs.
    """

    holder: str
    name: str
    layers: tuple[Layer, ...]
    cache: str | None
    norm: Norm | None = None
    half: bool = True
    tuples: int = 0
    alone: bool = False
    part: bool = False
    attention: str = "layerzero"
    unread: "tuple[Unread, ...]" = ()
    not_captured: str | None = None

    @property
    def groups(self) -> int:
        return 1 + max(layer.group for layer in self.layers)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Of those layers that have one."""
        return tuple(layer.attention for layer in self.layers if isinstance(layer.attention, Attention))

    @property
    def deltas(self) -> dict[int, Delta]:
        """By group."""
        return {layer.group: layer.attention for layer in self.layers if isinstance(layer.attention, Delta)}

    @property
    def cross(self) -> bool:
        return any(layer.cross is not None for layer in self.layers)

    @property
    def kind(self) -> str:
        return "encoder" if self.cache is None else "decoder"
