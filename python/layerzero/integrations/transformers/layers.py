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
    """Why the operations cannot compute a layer."""


class Unshown(Unknown):
    """These weights do not show what a layer computes; those of another model of this structure may."""


class NotReached(Unknown):
    """A small input does not reach the layers, or the model does not run on it."""


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm: `operation` is rms_norm or layer_norm, and `offset` is added to its weight. With the operation elementwise it is a
    factor for each column instead, the module's parameter `vector`.
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
    """Queries, keys or values as columns of a linear layer's output.

    A head begins `step` columns after the one before it. If heads are stored in several `groups`, a group begins `group_step`
    columns after the one before it, and with a step of 0 all heads of a group are the same columns. norm: a norm of each
    head, or of all columns at once (`whole`); it comes before the rotation, or after it (`behind`). clip: lower and upper
    bound of the normalised values, before the rotation. factor: multiplies the result.
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
        """Whether these are all columns of a linear layer, unchanged."""
        return self == Heads(self.linear, 0, self.heads, self.size, self.size)


class Table(NamedTuple):
    """A buffer of a module within a layer with a row for each position: half of its columns are sines, half cosines."""

    module: str
    name: str
    cosines_first: bool

    def at(self, buffer: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cosines, sines) of positions."""
        first, second = buffer[positions].chunk(2, dim=-1)
        return (first, second) if self.cosines_first else (second, first)


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotary embedding. It reads the first `width` columns of tables of cosines and sines: those that the layer gets as an
    argument, cosines first unless `sines_first`, or the layer's own `table`.
    """

    interleaved: bool
    rotary_dim: int
    width: int
    table: Table | None = None
    sines_first: bool = False


@dataclasses.dataclass(frozen=True)
class Alibi:
    """ALiBi: a bias of the scores that a layer gets as `argument`. slopes: one for each head, or None if they are not known.

    inverted: a boolean mask that is passed with it is True for hidden keys.
    """

    argument: str
    slopes: tuple[float, ...] | None
    inverted: bool


@dataclasses.dataclass(frozen=True)
class Latent:
    """Attention over latents (MLA): keys and values of all heads are computed from one row. The linear layer `down` computes
    `width` columns, which go through `norm` and then the linear layer `up`, and `shared` more columns, which are rotated and
    are the end of every head's key. `up` computes for each head the first `unturned` columns of its key, which are not
    rotated, and the `size` columns of its value.

    gathers: before the rotation, columns 0, 2, 4, ... come first, then 1, 3, 5, ... query_down, query_norm: the linear layer
    and the norm before the queries' own, if there are any.
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
    """gate: the output of attention is multiplied with the sigmoid of these columns. mixed: a norm of that output. needs_mask:
    only the mask makes it causal. masked_window: a window that only the mask has.
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
        """The window of attention over pages, which takes no mask: there it must have the window of the masks."""
        return self.masked_window if self.window is None else self.window

    @property
    def linears(self) -> tuple[str, ...]:
        """The linear layers that read the attention's input, each once, in the order of their use."""
        if self.latent is not None:
            return self.latent.query_down or self.query.linear, self.latent.down
        parts = (self.query, self.key, self.value, self.gate)
        return tuple(dict.fromkeys(part.linear for part in parts if part is not None))

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules whose parameters it uses, except norms."""
        further = (self.query.linear, self.key.linear)  # over latents they do not read the attention's input
        sinks = () if self.sinks is None else (self.sinks[0],)
        return tuple(dict.fromkeys((*self.linears, *further, self.out, *sinks)))

    @property
    def norms(self) -> tuple[Norm | None, ...]:
        latent = () if self.latent is None else (self.latent.norm, self.latent.query_norm)
        return self.query.norm, self.key.norm, self.mixed, *latent


@dataclasses.dataclass(frozen=True)
class Delta:
    """The gated delta rule in place of attention: it keeps a state, not keys and values.

    query, key, value: the columns that go through the convolution `conv`, in this order. heads, value_heads: (number, size) of
    the heads after the convolution. gate: the normalised output is multiplied with its silu. decay, beta: columns of logits.
    a_log, dt_bias: (module, its parameter). masked: rows of padding are set to zero first.
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

    # The attributes of an Attention that other code reads.
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
    """A bias of the scores by distance: `compute_bias` of the module `name` computes it from the embedding `table`."""

    name: str
    table: str


@dataclasses.dataclass(frozen=True)
class Mlp:
    """operation: swiglu, geglu, or activation, whose result is multiplied with `up` if there is a gate. kind: the form of gelu of
    geglu, or the name of the activation. norm: a norm before `out`.
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

    wide: the logits are computed in float32 whatever the dtype of the weights is.
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
        """Those that are no tensors."""
        return dict(itertools.islice(self._asdict().items(), 8))


@dataclasses.dataclass(frozen=True)
class Gate:
    """How experts combine gate and up; the fields are named like the arguments of the operations."""

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
    """A mixture of experts in place of an MLP: the weighted sum of the `chosen` best experts, whose weights one module holds.

    router: the module whose weight computes the logits. transposed: weights are stored as [experts, inputs, outputs]. shared:
    an MLP for every row, which is added; shared_gate: the linear layer whose sigmoid it is multiplied with, or None.
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
    """Norms around a part of a layer: `before` it, `after` it, and of the residual stream after its output was added (`behind`)."""

    before: Norm | None = None
    after: Norm | None = None
    behind: Norm | None = None


@dataclasses.dataclass(frozen=True)
class Layer:
    """index: the layer's place in the cache. group: layers of one group get the same mask, tables and bias; the first of them has
    the `bias`. transposed: linear layers whose weights are stored as [inputs, outputs]. factor: multiplies what each part
    adds to the residual stream.
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
        """All modules whose parameters the layer uses, except norms."""
        cross = () if self.cross is None else (*self.cross.linears, self.cross.out)
        bias = () if self.bias is None else (self.bias.table,)
        return (*self.attention.modules, *cross, *self.mlp.modules, *bias)


class Unread(NamedTuple):
    """An argument of layers whose numbers have no effect, and the kind of tensor for which that was shown."""

    argument: str
    kind: Any

    def is_given(self, arguments: dict[str, Any]) -> bool:
        return kind_of(arguments.get(self.argument)) == self.kind


def kind_of(value: Any) -> Any:
    """(number of axes, dtype) of a tensor, with one name for all floating-point dtypes; None of anything else."""
    if not isinstance(value, torch.Tensor):
        return None
    return value.dim(), "floating point" if value.is_floating_point() else str(value.dtype)


@dataclasses.dataclass(frozen=True)
class Stack:
    """All layers of a model: `holder` is the path of the module whose forward calls those of its list `name`.

    cache: the argument that passes the cache to a layer, None in an encoder. norm: the norm that the program of the layers ends
    with. half: whether the layers compute the same in float16; some clamp their result there. tuples: 0, or how many values a
    layer returns in a tuple, the rows first. alone: no run of the model reached the layers, so the program is compared with
    the model's own code in the first real calls. part: the model has other layers too. attention: the implementation that
    the model's configuration has to name. unread: further arguments of the layers, whose numbers have no effect. not_captured:
    why the model's own code runs around the layers, so that on a CUDA device its steps are not captured.
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
        """The attentions of the layers that have one."""
        return tuple(layer.attention for layer in self.layers if isinstance(layer.attention, Attention))

    @property
    def deltas(self) -> dict[int, Delta]:
        """The layers with a state, by group."""
        return {layer.group: layer.attention for layer in self.layers if isinstance(layer.attention, Delta)}

    @property
    def cross(self) -> bool:
        return any(layer.cross is not None for layer in self.layers)

    @property
    def kind(self) -> str:
        return "encoder" if self.cache is None else "decoder"
