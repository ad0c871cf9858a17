"""One recorded layer: which of its linear layers, norms and activations make which of its tensors.

Tensors that flow from part to part are identified by equal numbers, bit for bit; sums within their rounding.
"""

import dataclasses
import inspect
import itertools
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache
from transformers.pytorch_utils import Conv1D

from layerzero.integrations.transformers import biases, deltas, gates, latents, structure, thresholds
from layerzero.integrations.transformers import experts as experts_interface
from layerzero.integrations.transformers.arguments import ENCODED, ENCODED_MASK, MASK, signature_of
from layerzero.integrations.transformers.heads import SeesHeads
from layerzero.integrations.transformers.layers import (
    Attention,
    Columns,
    Experts,
    Layer,
    Mlp,
    Norm,
    Norms,
    NotReached,
    Unknown,
    Unshown,
)
from layerzero.integrations.transformers.recorded import (
    Attended,
    Call,
    Clamped,
    is_same,
    is_scale,
    is_sum,
    same,
)
from layerzero.integrations.transformers.routers import Dispatched, experts_of

_PARTS = {2: ("attention", "MLP"), 3: ("attention", "attention to an encoder", "MLP")}
_GATED = {"silu": ("swiglu", None), "gelu": ("geglu", "none"), "gelu_tanh": ("geglu", "tanh")}


class LayerTrace(SeesHeads):
    """What went through one layer in one forward, and what can be inferred from it."""

    def __init__(self, layer):
        self.layer = layer
        self.names = {id(module): name for name, module in layer.named_modules()}
        self.signature = signature_of(type(layer).forward)
        self.arguments: dict[str, Any] = {}
        self.given: Any = None
        self.result: Any = None
        self.tuples = 0
        self.within: list[nn.Module] = []  # the modules under way
        self.calls: list[Call] = []
        self.attended: list[Attended] = []
        self.convolved: list[deltas.Convolved] = []
        self.clamped: list[Clamped] = []
        self.compared: list[Any] = []  # (module, the function that its code calls)
        self.dispatched: list[Dispatched] = []
        self.used: set[str] = set()
        self.explained: list[Clamped] = []  # those of `clamped` that the description has
        self.transposed: tuple[str, ...] = ()

    # ---- recording

    def begins(self, _, args, kwargs):
        self.arguments = self.signature.bind(args, kwargs) or {}
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

    def clamps(self, given, least, most):
        self.clamped.append(Clamped(self.within[-1], given.clone(), least, most))

    def compares(self, name):
        self.compared.append((self.within[-1], name))

    def calls_experts(self, module, args, kwargs, result):
        own = inspect.unwrap(type(module).forward)
        given = list(inspect.signature(own).bind(module, *args, **kwargs).arguments.values())[1:4]
        tensors = (*given, result)
        self.dispatched.append(Dispatched(self.names[id(module)], module, *(t.clone() for t in tensors)))

    def why_bounded(self, layer):
        """None, or which bound of its code the Layer does not have. A trial of a router tells what those in it do."""
        router = self.layer.get_submodule(layer.mlp.router) if isinstance(layer.mlp, Experts) else None
        for name, module in self.layer.named_modules():
            seen = [clamp for clamp in self.clamped if clamp.module is module]
            unknown = module is not router and not experts_interface.looks_like_experts(module)
            if len(seen) < thresholds.clamps_of(module, half=False) or (
                unknown and any(all(clamp is not one for one in self.explained) for clamp in seen)
            ):
                return f"{name}: its code calls clamp: no small input shows what that does"
            compared = [called for where, called in self.compared if where is module]
            if compared and unknown:
                return f"{name}: its code calls {compared[0]}: no small input shows what that does"
        return None

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
            raise Unknown("returns more than rows")
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
            raise Unshown("its weights are zeros or the same in two linear layers: nothing shows their places")

    def _unused_tensors(self, layer):
        """The name of a tensor in the layer that may have a part in it and is in no description, or None."""
        vectors = {(norm.name, norm.vector) for norm in layer.norms}
        known = {*layer.modules, *(norm.name for norm in layer.norms if norm.vector is None)}
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
            held = {key: tensor for key, tensor in held.items() if (name, key) not in vectors}
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
        if isinstance(call, Norm):
            return call
        if call in self.scales:
            self.used.add(call.name)
            (vector,) = (key for key, held in call.module._parameters.items() if held is not None)
            return Norm(call.name, "elementwise", vector=vector)
        found, reason = structure.norm_of(call.module)
        if reason:
            raise Unknown(f"{call.name}: {reason}")
        self.used.add(call.name)
        return Norm(call.name, found[0], structure.eps_of(call.module), found[1]["weight_offset"])

    # ---- attention

    def _bias(self):
        """The Bias that its attention makes itself; None, too, where it is given one."""
        module = self.attended[0].module if self.attended else self.layer
        return None if self.bias is None else biases.of_attention(module, self.names[id(module)], self.bias)

    def _attention(self, seen, cross=False):
        """(Attention, the call that reads for it, its output rows). cross: its keys are of an encoder's rows."""
        if seen.mask is not None and seen.mask is not self.arguments.get(ENCODED_MASK if cross else MASK):
            raise Unknown("its attention gets another mask than the layer")
        further = {name: value for name, value in seen.further.items() if value is not None}
        if cross and "position_bias" in further and further["position_bias"].any():
            raise Unknown("its attention to an encoder's rows has position_bias")
        if not cross and latents.are_kept(self, seen):
            query, key, value, latent, rope, source = latents.of_attention(self, seen)
        else:
            query, key, value, rope, source = self._whole(seen, cross)
            latent = None
        mixed = seen.result.flatten(-2)
        norm = next((call for call in self.all_norms if same(call.given, mixed)), None)
        out, gate = gates.out_of(self, mixed if norm is None else norm.result, query, source)
        if gate is not None and norm is not None:
            raise Unknown("its attention is normalised and has a gate")
        causal = further.get("is_causal", getattr(seen.module, "is_causal", True))
        attention = Attention(
            query, key, value, self.use(out),
            scale=float(further.get("scaling", query.size**-0.5)),
            causal=bool(causal),
            rope=rope,
            window=further.get("sliding_window") if causal else None,
            masked_window=None if causal or cross else further.get("sliding_window"),
            softcap=further.get("softcap"),
            sinks=self._sinks(further["s_aux"]) if "s_aux" in further else None,
            alibi=further.get("alibi"),
            latent=latent,
            gate=gate,
            mixed=None if norm is None else self._norm(norm),
        )  # fmt: skip
        if cross and (
            causal
            or rope
            or attention.sinks
            or attention.alibi
            or gate
            or norm
            or not all(map(self._is_plain, (key, value)))
        ):
            raise Unknown("its attention to an encoder's rows is of an unknown kind")
        if latent and (not causal or attention.sinks or attention.alibi or gate or norm):
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
        return heads.is_plain and heads.linear not in self.transposed

    # ---- MLP

    def _mlp(self):
        """Returns (Mlp or Experts, the call that reads for it, its output rows)."""
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
        raise Unknown("mlp: its activation does not read the output of a linear layer")

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
        if kind is None:
            raise Unknown(f"mlp: its activation {type(function.module).__name__} is none that the operations know")
        expected = (
            function.result if up is None else function.result * self._of(into, up).reshape(function.result.shape)
        )
        zeros = torch.zeros_like(expected)
        norm = None if is_sum(out.given, expected, zeros) else self._norm_of_sum(out, expected, zeros)
        if up is None:
            return Mlp(gate, out.name, "activation", kind, norm=norm)
        operation, further = _GATED.get(kind, ("activation", kind))
        return Mlp(up, out.name, operation, further, gate, norm)

    def _norm_of_sum(self, out, *terms):
        """What normalises a sum of the terms for `out`."""
        for call in self.all_norms:
            if same(call.result, out.given) and is_sum(call.given, *terms):
                return self._norm(call)
        raise Unknown("mlp: it computes something else than out(activation(gate) * up)")

    # ---- norms and sums

    def _placed(self, parts):
        """(parallel, factor, the Norms of each part). parts: the call that reads, and its output rows."""
        for afters in itertools.product(*(self._after(rows) for _, rows in parts)):
            found = self._placed_so(parts, afters)
            if found is not None:
                return found
        raise Unknown("the order of its norms and sums was not recognised")

    def _placed_so(self, parts, afters):
        """The same, or None, where `afters` are what is added."""
        for name, (rows, _) in zip(_PARTS[len(parts)], afters, strict=True):
            if same(self.given + rows.reshape(self.given.shape), self.given):
                raise Unshown(f"its {name} adds nothing to its input, so that nothing shows its place")
        for factor in [1.0, *(v for v in vars(self.layer).values() if isinstance(v, float))]:
            added = [(reader, rows * factor) for (reader, _), (rows, _) in zip(parts, afters, strict=True)]
            for parallel, orders in ((True, self._side_by_side(added)), (False, self._in_turn((self.given,), added))):
                for order in orders:
                    calls = [(before, norm, behind) for (before, behind), (_, norm) in zip(order, afters, strict=True)]
                    return parallel, factor, [self._norms(three) for three in calls]
        return None

    def _norms(self, calls):
        return Norms(*(None if call is None else self._norm(call) for call in calls))

    def _side_by_side(self, parts):
        """[(the call of the norm before, None)] of two parts that both read what the layer got."""
        if len(parts) == 2 and is_sum(self.result, self.given, *(rows for _, rows in parts)):
            for pair in itertools.product(*(self._between((self.given,), reader) for reader, _ in parts)):
                yield [(before, None) for before in pair]

    def _in_turn(self, stream, parts):
        """[(the calls of the norms before and after)] of parts that read what the one before them left: its terms."""
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
        """[(rows, norm call or None)]: normalised, or times a factor for each column, where a module does that with them;
        else what they may be times a vector that a module with parts has, as that Norm.
        """
        call = next((call for call in (*self.all_norms, *self.scales) if same(call.given, rows)), None)
        yield (rows, None) if call is None else (call.result, call)
        vectors = [] if call is not None else self._vectors(rows.shape[-1])
        if any(torch.equal(a, b) for (*_, a), (*_, b) in itertools.combinations(vectors, 2)):
            raise Unshown("two of its vectors are the same: nothing shows which one is the factor of what")
        for name, key, held in vectors:
            yield rows * held, Norm(name, "elementwise", vector=key)

    def _vectors(self, size):
        """[(module, name, vector)] of the vectors of `size` numbers that modules with parts have."""
        modules = [(name, module) for name, module in self.layer.named_modules() if module._modules]
        held = [(name, key, tensor) for name, module in modules for key, tensor in module._parameters.items()]
        return [(name, key, t.detach()) for name, key, t in held if t is not None and t.shape == (size,)]
