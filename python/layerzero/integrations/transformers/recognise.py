"""One recorded layer: which of its linear layers, norms and activations make which of its tensors.

Tensors that flow from part to part are told by equal numbers, bit for bit; sums within their rounding.
"""

import dataclasses
import inspect
import itertools
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.pytorch_utils import Conv1D

from layerzero import _layerzero
from layerzero.integrations.transformers import biases, deltas, gates, latents, structure
from layerzero.integrations.transformers.layers import (
    Attention,
    Columns,
    Experts,
    Heads,
    Layer,
    Mlp,
    Norm,
    Norms,
    NotReached,
    Rope,
    Unknown,
)
from layerzero.integrations.transformers.recorded import (
    Attended,
    Call,
    in_both_layouts,
    is_same,
    is_scale,
    is_sum,
    same,
    tables_of,
)
from layerzero.integrations.transformers.routers import Dispatched, experts_of

_rope = _layerzero.ops["rope"]
# The arguments by which a layer gets what an encoder made, and which of it is padding.
ENCODED, ENCODED_MASK = "encoder_hidden_states", "encoder_attention_mask"
_PARTS = {2: ("attention", "MLP"), 3: ("attention", "attention to an encoder", "MLP")}
_GATED = {"silu": ("swiglu", None), "gelu": ("geglu", "none"), "gelu_tanh": ("geglu", "tanh")}


class LayerTrace:
    """What went through one layer in one forward, and what can be told from it."""

    def __init__(self, layer):
        self.layer = layer
        self.names = {id(module): name for name, module in layer.named_modules()}
        self.parameters = list(inspect.signature(type(layer).forward).parameters)[1:]
        self.arguments: dict[str, Any] = {}
        self.given: Any = None
        self.result: Any = None
        self.tuples = 0
        self.within: list[nn.Module] = []  # the modules under way
        self.calls: list[Call] = []
        self.attended: list[Attended] = []
        self.convolved: list[deltas.Convolved] = []
        self.dispatched: list[Dispatched] = []
        self.used: set[str] = set()
        self.transposed: tuple[str, ...] = ()

    # ---- recording

    def begins(self, _, args, kwargs):
        self.arguments = dict(zip(self.parameters, args, strict=False)) | kwargs
        self.given = next(iter(self.arguments.values())).clone()

    def ends(self, _, args, result):
        self.tuples = len(result) if isinstance(result, tuple) else 0
        rows, *further = result if self.tuples else (result,)
        known = [None, *(seen.further.get(name) for seen in self.attended for name in ("position_bias", "weights"))]
        plain = isinstance(rows, torch.Tensor) and all(any(is_same(value, one) for one in known) for value in further)
        self.result = rows.clone() if plain else None

    def enters(self, module, _):
        self.within.append(module)

    def leaves(self, *_):
        self.within.pop()

    def calls_leaf(self, module, args, kwargs, result):
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        result = result[0] if isinstance(result, tuple) and result else result
        if tensors and isinstance(result, torch.Tensor) and tensors[0].dim() and result.dim():
            given, *further = (tensor.clone() for tensor in tensors)
            own = (tensors[0], result)
            self.calls.append(Call(self.names[id(module)], module, given, result.clone(), own, tuple(further)))

    def attends(self, module, heads, mask, result, further):
        self.attended.append(Attended(module, tuple(h.clone() for h in heads), mask, result.clone(), further))

    def convolves(self, given, weight):
        self.convolved.append(deltas.Convolved(given.clone(), weight))

    def calls_experts(self, module, args, kwargs, result):
        own = inspect.unwrap(type(module).forward)
        given = list(inspect.signature(own).bind(module, *args, **kwargs).arguments.values())[1:4]
        tensors = (*given, result)
        self.dispatched.append(Dispatched(self.names[id(module)], module, *(t.clone() for t in tensors)))

    # ---- between layers

    @property
    def cache(self):
        """The name of the argument that is the cache."""
        return next((name for name, value in self.arguments.items() if isinstance(value, Cache)), None)

    @property
    def bias(self):
        """What was added to the scores of its attention, or None."""
        return self.attended[0].further.get("position_bias") if self.attended else None

    def follows(self, before):
        return before.result is not None and self.given is not None and same(self.given, before.result)

    # ---- within the layer

    def describe(self):
        """The Layer that this is; raises Unknown."""
        if self.given is None:
            raise NotReached("was not reached by a small input")
        keeps_state = not self.attended and len(self.convolved) == 1
        if not keeps_state and len(self.attended) not in (1, 2):
            raise Unknown(f"calls attention {len(self.attended)} times through Transformers' interface")
        if self.result is None:
            raise Unknown("gives more than rows")
        self._sort_calls()
        attention, *first = deltas.of_layer(self) if keeps_state else self._attention(self.attended[0])
        cross, *second = self._attention(self.attended[1], cross=True) if len(self.attended) > 1 else (None,)
        mlp, *last = self._mlp()
        parallel, factor, norms = self._placed([first, second, last] if cross else [first, last])
        module = self.layer.get_submodule(attention.a_log[0]) if keeps_state else self.attended[0].module
        index = getattr(module, "layer_idx", None)
        layer = Layer(
            attention, mlp, norms[0], norms[-1], parallel, factor,
            index=-1 if index is None else index, transposed=self.transposed,
            cross=cross, cross_norms=norms[1] if cross else Norms(), bias=self._bias(),
        )  # fmt: skip
        unused = self._unused_tensors(layer)
        if unused:
            raise Unknown(f"{unused} has a part in it that was not recognised")
        return layer

    def _sort_calls(self):
        """By what the modules are; raises Unknown where numbers could not tell linear layers apart."""
        self.linears = [call for call in self.calls if isinstance(call.module, (nn.Linear, Conv1D))]
        self.all_norms = [call for call in self.calls if structure.looks_like_norm(call.module)]
        self.scales = [call for call in self.calls if is_scale(call)]
        functions = [call for call in self.calls if not any(True for _ in call.module.parameters())]
        self.functions = [call for call in functions if not isinstance(call.module, nn.Dropout)]
        results = [call.result for call in self.linears]
        alike = any(a.shape == b.shape and torch.equal(a, b) for a, b in itertools.combinations(results, 2))
        if alike or not all(result.any() for result in results):
            raise Unknown("its weights are zeros or the same in two linear layers: nothing tells where those stand")

    def _unused_tensors(self, layer):
        """The name of a tensor in the layer that may have a part in it and is in no description, or None."""
        known = {*layer.modules, *(norm.name for norm in layer.norms)}
        called = {call.name for call in self.calls}
        experts = layer.mlp if isinstance(layer.mlp, Experts) else None
        for name, module in self.layer.named_modules():
            plain = isinstance(module, (nn.Linear, Conv1D)) or structure.looks_like_norm(module)
            if plain and name not in called:  # of another way through the layer
                continue
            held = dict(module._parameters)
            if experts is not None and (
                name == experts.router or f"{experts.name}.".startswith(f"{name}." if name else "")
            ):
                held |= module._buffers  # of what holds experts: what corrects their choice
            if name in known:
                part = {"weight", "bias"} if experts is not None and name == experts.router else held.keys()
                held = {key: tensor for key, tensor in held.items() if key not in part}
            if experts is not None and experts.route.correction is not None and experts.route.correction[0] == name:
                held.pop(experts.route.correction[1])
            further = [key for key, tensor in held.items() if tensor is not None]
            if further:
                return ".".join(filter(None, (name, further[0])))
        return None

    def use(self, call):
        """The name of a linear layer that the program reads; raises Unknown where it is no plain one."""
        if call.name not in self.used:
            transposed = type(call.module) is Conv1D
            reason = (structure.why_not_conv1d if transposed else structure.why_not_linear)(call.module)
            self.transposed += (call.name,) if transposed else ()
            if reason:
                raise Unknown(f"{call.name}: {reason}")
        self.used.add(call.name)
        return call.name

    def _norm(self, call):
        if call in self.scales:
            self.used.add(call.name)
            return Norm(call.name, "elementwise")
        found, reason = structure.norm_of(call.module)
        if reason:
            raise Unknown(f"{call.name}: {reason}")
        self.used.add(call.name)
        return Norm(call.name, found[0], structure.eps_of(call.module), found[1].get("weight_offset", 0.0))

    # ---- attention

    def _bias(self):
        """The Bias that its attention makes itself; None, too, where it is given one."""
        module = self.attended[0].module if self.attended else self.layer
        return None if self.bias is None else biases.of_attention(module, self.names[id(module)], self.bias)

    def _attention(self, seen, cross=False):
        """(Attention, the call that reads for it, the rows that it gives). cross: its keys are of an encoder's rows."""
        if seen.mask is not None and seen.mask is not self.arguments.get(ENCODED_MASK if cross else "attention_mask"):
            raise Unknown("its attention gets another mask than the layer")
        further = {name: value for name, value in seen.further.items() if value is not None}
        if cross and "position_bias" in further and further["position_bias"].any():
            raise Unknown("its attention to an encoder's rows has position_bias")
        if not cross and latents.are_kept(self, seen):
            query, key, value, latent, rope, source = latents.of_attention(self, seen)
        else:
            query, key, value, rope, source = self._whole(seen, cross)
            latent = None
        out, gate = gates.out_of(self, seen.result.flatten(-2), query, source)
        causal = further.get("is_causal", getattr(seen.module, "is_causal", True))
        attention = Attention(
            query, key, value, self.use(out),
            scale=float(further.get("scaling", query.size**-0.5)),
            causal=bool(causal),
            rope=rope,
            window=further.get("sliding_window") if causal else None,  # of an encoder: its masks have it
            softcap=further.get("softcap"),
            sinks=self._sinks(further["s_aux"]) if "s_aux" in further else None,
            alibi=further.get("alibi"),
            latent=latent,
            gate=gate,
        )  # fmt: skip
        if cross and (
            causal or rope or attention.sinks or attention.alibi or gate or not all(map(self._is_plain, (key, value)))
        ):
            raise Unknown("its attention to an encoder's rows is of an unknown kind")
        if latent and (not causal or attention.sinks or attention.alibi or gate):
            raise Unknown("its attention over latents is of an unknown kind")
        return attention, source, out.result

    def _whole(self, seen, cross):
        """(queries, keys, values, Rope, the call that reads for them): columns of what linear layers give."""
        if seen.heads[1].shape != seen.heads[2].shape:
            raise Unknown("its keys and values have different sizes")
        (query, rope), (key, key_rope), (value, _) = (self._heads(seen, index) for index in range(3))
        if rope != key_rope:
            raise Unknown("its queries and keys are rotated in different ways")
        calls = {call.name: call for call in self.linears}
        source, *others = (calls[part.linear] for part in (query, key, value))
        read = self.arguments.get(ENCODED) if cross else source.given
        if read is None or not all(same(call.given, read) for call in others):
            raise Unknown("its queries, keys and values come from different rows")
        return query, key, value, rope, source

    def _sinks(self, seen):
        """(module, its parameter) that its attention was given as sinks."""
        for module, name in ((m, n) for m in self.layer.modules() for n, held in m._parameters.items() if held is seen):
            if [n for n, held in module._parameters.items() if held is not None] == [name]:
                return self.names[id(module)], name
        raise Unknown("its attention has sinks that are no parameter of their own")

    def _is_plain(self, heads):
        whole = (heads.column, heads.step, heads.norm, heads.factor) == (0, heads.size, None, 1.0)
        return whole and heads.linear not in self.transposed

    def _heads(self, seen, index):
        """(Heads, Rope or None) of queries, keys or values."""
        wanted = seen.heads[index].transpose(1, 2)
        shape = (*wanted.shape[:2], -1)
        constants = vars(seen.module).values() if index == 0 else ()
        factors = [1.0, *(value for value in constants if isinstance(value, float))]
        for call in self.linears:
            if call.result.shape[:-1].numel() != wanted.shape[:2].numel():
                continue
            rows = call.result.reshape(shape)
            for column, step in self._columns(seen, rows.shape[-1], index):
                part = Heads(call.name, column, wanted.shape[2], wanted.shape[3], step)
                for normed, norm, whole in self._normed(rows, part):
                    for turned, rope in self._turned(normed) if index < 2 else [(normed, None)]:
                        for factor in factors:
                            if self._matches(turned * factor if factor != 1.0 else turned, wanted, rope):
                                self.use(call)
                                norm = None if norm is None else self._norm(norm)
                                return dataclasses.replace(part, norm=norm, whole=whole, factor=factor), rope
                found = self._normed_behind(rows, part, wanted) if index < 2 else None
                if found is not None:
                    self.use(call)
                    return dataclasses.replace(part, norm=self._norm(found[0]), behind=True), found[1]
        raise Unknown(f"its {('queries', 'keys', 'values')[index]} come about in a way that was not recognised")

    def _normed_behind(self, rows, part, wanted):
        """(the call of the norm, Rope) of heads that are rotated first, or None."""
        heads = next(self._normed(rows, part))[0]
        for turned, rope in self._turned(heads):
            for call in self.all_norms if rope is not None else ():
                for given, result in in_both_layouts(call):
                    if (
                        given.shape == turned.shape
                        and torch.equal(result, wanted)
                        and self._matches(turned, given, rope)
                    ):
                        return call, rope
        return None

    @staticmethod
    def _matches(rows, wanted, rope):
        if rope is None:
            return torch.equal(rows, wanted)
        return structure.agrees_by_row(rows.flatten(0, 1), wanted.flatten(0, 1))

    @staticmethod
    def _columns(seen, width, index):
        """(column, step) of where queries, keys or values may lie in so many columns."""
        _, heads, _, size = zip(*(h.shape for h in seen.heads), strict=True)
        widths = [h * s for h, s in zip(heads, size, strict=True)]
        if width == widths[index]:
            yield 0, size[index]
        if width == 2 * widths[index]:  # beside a gate of each head
            yield 0, 2 * size[index]
        if width == sum(widths):
            yield sum(widths[:index]), size[index]
            if len(set(widths)) == 1:  # of one head behind each other
                yield index * size[index], 3 * size[index]

    def _normed(self, rows, part):
        """(heads, the call of their norm, whether it is one of all columns): without a norm first."""
        batch, length, width = rows.shape
        strides = (length * width, width, part.step, 1)
        heads = rows.contiguous().as_strided((batch, length, part.heads, part.size), strides, part.column)
        yield heads, None, False
        for call in self.all_norms:
            if call.given.dim() == 4 and call.given.shape[-1] == part.size:
                for given, result in in_both_layouts(call):
                    if given.shape == heads.shape and torch.equal(given, heads):
                        yield result, call, False
            elif same(call.given, rows) and width == part.heads * part.size:
                yield call.result.reshape(heads.shape), call, True

    def _turned(self, heads):
        """(rotated heads, Rope), as they are first."""
        yield heads, None
        tables = tables_of(self.arguments.get("position_embeddings"))
        if any(t is None or t.dim() != 3 for t in tables):
            return
        width = tables[0].shape[-1]
        kinds = [(False, width, width), (True, width, width), (False, 2 * width, width), (True, 2 * width, width)]
        kinds += [(True, width, width // 2)]
        for interleaved, rotary_dim, read in kinds:
            if rotary_dim <= heads.shape[-1]:
                cos, sin = (table[..., :read] for table in tables)
                turned = _rope(
                    heads.contiguous(), cos, sin, interleaved=interleaved, rotary_dim=rotary_dim, layout="BSHD"
                )
                yield turned, Rope(interleaved, rotary_dim, read)

    # ---- MLP

    def _mlp(self):
        """(Mlp or Experts, the call that reads for it, the rows that it gives)."""
        return self._experts() if self.dispatched else self._dense(self._unused())

    def _unused(self):
        return [call for call in self.linears if call.name not in self.used]

    def _dense(self, rest):
        """The same of an MLP that is these linear layers."""
        if len(rest) not in (2, 3):
            raise Unknown(f"has {len(rest)} linear layers besides those of its attention: no MLP")
        *into, out = rest
        if not all(same(call.given, into[0].given) for call in into):
            raise Unknown("the linear layers of its MLP read different rows")
        for function in self.functions:
            for gate, up in self._gates(into, out.given.shape[-1]):
                if same(function.given, self._of(into, gate)):
                    mlp = self._through(function, gate, up, into, out)
                    for call in rest:
                        self.use(call)
                    return mlp, into[0], out.result
        raise Unknown("mlp: its activation reads what no linear layer gives")

    def _experts(self):
        if len(self.dispatched) != 1:
            raise Unknown(f"calls experts {len(self.dispatched)} times")
        (dispatched,) = self.dispatched
        readers = [call for call in self.calls if call.name not in self.used and same(call.given, dispatched.rows)]
        experts, router = experts_of(dispatched, readers, self.layer)
        self.used.add(router.name)
        result, rest = dispatched.result, self._unused()
        if not rest:
            return experts, router, result
        gate = next((call for call in readers if call.result.shape[-1] == 1), None)
        shared, into, rows = self._dense([call for call in rest if call is not gate])
        if not same(into.given, dispatched.rows):
            raise Unknown("its shared expert reads other rows than the experts")
        if gate is not None:
            rows = torch.sigmoid(gate.result) * rows
            self.use(gate)
        experts = dataclasses.replace(experts, shared=shared, shared_gate=gate and gate.name)
        return experts, router, result + rows.reshape(result.shape)

    @staticmethod
    def _of(into, columns):
        result = next(call.result for call in into if call.name == columns.linear)
        return result[..., columns.column : columns.column + columns.width]

    @staticmethod
    def _gates(into, width):
        """(gate, up or None) as columns that may be it."""
        whole = [Columns(call.name, 0, width) for call in into if call.result.shape[-1] == width]
        if len(whole) == 2:
            yield whole[0], whole[1]
            yield whole[1], whole[0]
        elif len(into) == 1 and whole:
            yield whole[0], None
        elif len(into) == 1 and into[0].result.shape[-1] == 2 * width:
            halves = [Columns(into[0].name, column, width) for column in (0, width)]
            yield halves[0], halves[1]
            yield halves[1], halves[0]

    def _through(self, function, gate, up, into, out):
        kind = structure.activation_of(function.module)
        name = type(function.module).__name__
        if kind is None:
            raise Unknown(f"mlp: its activation {name} is none that the operations know")
        expected = (
            function.result if up is None else function.result * self._of(into, up).reshape(function.result.shape)
        )
        if not is_sum(out.given, expected, torch.zeros_like(expected)):
            raise Unknown("mlp: it computes something else than out(activation(gate) * up)")
        if up is None:
            return Mlp(gate, out.name, "activation", kind)
        if kind not in _GATED:
            raise Unknown(f"mlp: its gate goes through {name}, and no operation has that")
        operation, approximate = _GATED[kind]
        return Mlp(up, out.name, operation, approximate, gate)

    # ---- norms and sums

    def _placed(self, parts):
        """(parallel, factor, the Norms of each part). parts: the call that reads, and the rows that it gives."""
        afters = [self._after(rows) for _, rows in parts]
        for name, (rows, _) in zip(_PARTS[len(parts)], afters, strict=True):
            if same(self.given + rows.reshape(self.given.shape), self.given):
                raise Unknown(f"its {name} adds nothing to its input, so that nothing tells where it stands")
        for factor in [1.0, *(v for v in vars(self.layer).values() if isinstance(v, float))]:
            added = [(reader, rows * factor) for (reader, _), (rows, _) in zip(parts, afters, strict=True)]
            for parallel, orders in ((True, self._side_by_side(added)), (False, self._in_turn((self.given,), added))):
                for order in orders:
                    calls = [(before, norm, behind) for (before, behind), (_, norm) in zip(order, afters, strict=True)]
                    return parallel, factor, [self._norms(three) for three in calls]
        raise Unknown("its norms and sums stand in an order that was not recognised")

    def _norms(self, calls):
        return Norms(*(None if call is None else self._norm(call) for call in calls))

    def _side_by_side(self, parts):
        """[(the call of the norm before, None)] of two parts that both read what the layer got."""
        if len(parts) == 2 and is_sum(self.result, self.given, *(rows for _, rows in parts)):
            for pair in itertools.product(*(self._between((self.given,), reader) for reader, _ in parts)):
                yield [(before, None) for before in pair]

    def _in_turn(self, stream, parts):
        """[(the calls of the norms before and behind)] of parts that read what the one before them left: its terms."""
        (reader, rows), *rest = parts
        for before in self._between(stream, reader):
            terms = (before.given, rows) if before is not None and len(stream) > 1 else (*stream, rows)
            for behind, end in self._behind(terms):
                if rest:
                    yield from ([(before, behind), *further] for further in self._in_turn(end, rest))
                elif is_sum(self.result, *end):
                    yield [(before, behind)]

    def _behind(self, terms):
        """(norm or None, the terms of the stream after it) where a sum may be normalised."""
        yield None, terms
        for call in self.all_norms:
            if is_sum(call.given, *terms):
                yield call, (call.result,)

    def _between(self, terms, reader):
        """The norm, or None, that makes what `reader` reads of the sum of the terms."""
        if is_sum(reader.given, *terms):
            yield None
        found = [call for call in self.all_norms if same(call.result, reader.given) and is_sum(call.given, *terms)]
        # Norms of a new model are alike: then the memory tells which one it was.
        found = found if len(found) < 2 else [call for call in found if reader.reads(call)]
        yield from found[:1]

    def _after(self, rows):
        """(rows, norm call or None): normalised, or times a factor for each column, where a module does that with them."""
        call = next((call for call in (*self.all_norms, *self.scales) if same(call.given, rows)), None)
        return (rows, None) if call is None else (call.result, call)
