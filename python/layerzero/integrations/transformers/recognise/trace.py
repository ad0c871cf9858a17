"""The graph of a layer: one node for each call of torch that its own code makes, recorded while the model runs once.

A node has the name of the function (`__rmul__`, `mul_` and `torch.mul` are all "mul"), its arguments, which are nodes or
plain values, and its result. Calls that change no number make no node: copies, dropout in evaluation mode, views of the same
shape, concatenation with an empty cache. A cast is a node, which matching skips. Masks, caches and positions are the layer's
arguments and so inputs of the graph, by role. Attention through Transformers' interface and experts are one node each.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import Cache

from layerzero.integrations.modules import TOLERANCE
from layerzero.integrations.transformers.arguments import signature_of
from layerzero.integrations.transformers.layers import Unknown
from layerzero.integrations.transformers.recognise.nodes import Node, below, named, nodes_in, sibling
from layerzero.integrations.transformers.run import experts as experts_interface
from layerzero.integrations.transformers.run.attention import leaves_softcap_out

# Functions that return the numbers that they are given. With another dtype the node is a "cast".
_SAME = {"contiguous", "clone", "detach", "alias", "requires_grad_", "to", "type_as", "type", "identity",
         "float", "half", "bfloat16", "double", "view_as", "reshape_as", "positive", "lift_fresh"}  # fmt: skip
_SHAPED = {"view", "reshape", "expand", "expand_as", "flatten", "squeeze", "repeat", "broadcast_to", "unflatten"}
_SWAPPED = {"rsub": "sub", "rdiv": "div", "rtruediv": "div", "rpow": "pow"}
_NAMES = {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "rmul": "mul",
          "radd": "add", "negative": "neg", "bmm": "matmul", "clip": "clamp", "permute_dims": "permute", "swapaxes": "transpose",
          "swapdims": "transpose", "concat": "cat", "concatenate": "cat", "special_expit": "sigmoid", "iadd": "add",
          "isub": "sub", "imul": "mul", "itruediv": "div", "idiv": "div", "native_layer_norm": "layer_norm"}  # fmt: skip
# Functions that return a number to Python, whose code may then do anything with it.
_READS = {"item", "tolist", "numpy", "bool", "float", "int", "index", "allclose", "equal", "is_nonzero", "contains"}
_CREATES = {"zeros", "ones", "full", "new_zeros", "new_ones", "new_full"}  # whose results may be written into later
_TRANSPOSING = ("t", "T", "mT")


def _tensors_in(value: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _tensors_in(each, f"{name}.{index}")


class Graph:
    """The graph of one layer in one call. arguments: by role, see `arguments.py`. rows, result: the nodes of the first argument and of
    the first value that the layer returned."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.signature = signature_of(type(layer).forward)
        self.modules = {id(module): name for name, module in layer.named_modules()}
        self.arguments: dict[str, Any] = {}
        self.rows: Any = None
        self.result: Any = None
        self.tuples = 0  # how many values the layer returned in a tuple, or 0
        self.within: list[str] = []
        self.nodes: list[Node] = []
        self.refused: str | None = None  # why the graph does not show everything that was done
        self.calls = 0
        self.given: Any = None  # the rows before and after, as they were then
        self.left: Any = None
        self.biases: list[Any] = []  # what was added to the scores of each attention, or None
        self.weights: list[Any] = []  # that attention returned besides its result
        self._by_tensor: dict[int, Node] = {}
        self._memory: dict[int, set[int]] = {}  # storage -> the tensors over it that were seen

    def begin(self, args: Any, kwargs: dict[str, Any]) -> None:
        self.arguments = self.signature.bind(args, kwargs) or {}
        self._by_tensor, self._memory, self.nodes, self.weights, self.biases = {}, {}, [], [], []
        held = [*self.layer.named_parameters(remove_duplicate=False), *self.layer.named_buffers(remove_duplicate=False)]
        for name, tensor in held:
            self._know(tensor, Node("parameter", tensor, name=name))
        for role, value in self.arguments.items():
            for name, tensor in _tensors_in(value, role):
                if id(tensor) not in self._by_tensor:
                    self._know(tensor, Node("input", tensor, name=name))
        first: Any = next(iter(self.arguments.values()), None)
        self.rows = self._by_tensor.get(id(first))
        self.given = None if self.rows is None else first.clone()
        self.calls += 1

    def end(self, result: Any) -> None:
        self.tuples = len(result) if isinstance(result, tuple) else 0
        rows, *further = result if self.tuples else (result,)
        plain = isinstance(rows, torch.Tensor) and all(map(self._is_known, further))
        self.left = rows.clone() if plain else None
        self.result = self._by_tensor.get(id(rows)) if plain else None
        self.users: dict[int, list[Node]] = {}
        for node in self.nodes:
            for each in node.inputs:
                self.users.setdefault(id(each), []).append(node)

    def _is_known(self, value: Any) -> bool:
        """Whether a further value that a layer returns is None, its bias of scores, or its attention weights."""
        known = [*self.biases, *self.weights, *(node.value for node in self.nodes if node.op == "softmax")]
        return value is None or any(_are_the_same(value, one) for one in known)

    @property
    def cache(self) -> str | None:
        """The role of the argument that is the cache."""
        return next((name for name, value in self.arguments.items() if isinstance(value, Cache)), None)

    def kept(self, path: str) -> Any:
        """What the cache has for this layer, by the index that the module at `path` knows; None if it has nothing."""
        layers: Any = getattr(self.arguments.get(self.cache or ""), "layers", ())
        index = getattr(self.layer.get_submodule(path), "layer_idx", -1)
        return layers[index] if 0 <= index < len(layers) else None

    @property
    def bias(self) -> Any:
        """What was added to the scores of its first attention, or None."""
        return self.biases[0] if self.biases else None

    def follows(self, before: "Graph") -> bool:
        """Whether the layer got what the one before it returned."""
        return before.left is not None and self.given is not None and torch.equal(self.given, before.left)

    def leave(self, *_: Any) -> None:
        self.within.pop()

    def _know(self, tensor: torch.Tensor, node: Node) -> None:
        self._by_tensor[id(tensor)] = node
        self.nodes.append(node)
        with contextlib.suppress(RuntimeError, NotImplementedError):  # of tensors without memory
            self._memory.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
        if node.value is not tensor:  # alive as long as its id is used
            self.nodes.append(Node("alias", tensor, (node,)))

    def node_of(self, value: Any) -> Any:
        """The value with tensors replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._by_tensor:
                self._know(value, Node("constant", value))
            return self._by_tensor[id(value)]
        if isinstance(value, (tuple, list)):
            kind: Any = type(value) if type(value) in (tuple, list) else tuple
            return kind(map(self.node_of, value))
        if isinstance(value, dict):
            return {name: self.node_of(each) for name, each in value.items()}
        return value

    @property
    def module(self) -> str:
        return self.within[-1] if self.within else ""

    def add(self, op: str, args: Any, kwargs: Any, result: Any, call: Any = None) -> Node:
        """Adds a node for a call, and remembers its results."""
        node = Node(op, result, args, kwargs, module=self.module)
        node.call = call or (None, args, kwargs)
        if isinstance(result, torch.Tensor):
            self._know(result, node)
        elif isinstance(result, (tuple, list)):
            self.nodes.append(node)
            for index, each in enumerate(result):
                if isinstance(each, torch.Tensor):
                    self._know(each, Node("item", each, (node, index), module=self.module))
        return node

    def record(self, func: Any, given: Any, further: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Records a call. args, kwargs: `given` and `further` with nodes for tensors, as they were before the call."""
        raw = getattr(func, "__name__", str(func))
        raw = func.__self__.__name__ if raw == "__get__" else raw
        name = raw.strip("_") if raw.startswith("__") else raw
        if isinstance(result, torch.Size):
            return
        if name in ("setitem", "copy_") and self._fills(name, args):
            return
        if name == "setitem" or further.get("out") is not None:
            written = given[0] if name == "setitem" else further["out"]
            self._write(written)
            self.add("written", args, kwargs, written, call=(_set if name == "setitem" else None, args, kwargs))
            return
        if not isinstance(result, (torch.Tensor, tuple, list)):
            if name in _READS and any(map(_is_of_numbers, nodes_in((args, kwargs)))):
                reason = f"its code calls {raw}: what it does with the answer is in no graph"
                self.refused = self.refused or f"{self.module}: {reason}"
            return
        tensor: Any = args[0] if args and isinstance(args[0], Node) else None
        if isinstance(result, torch.Tensor) and given and result is given[0] and tensor is not None:
            writes = (raw.endswith("_") and not raw.startswith("__")) or raw.startswith("__i")
            if not writes or name in _SAME:
                tensor.widened |= name == "float" or torch.float32 in (*given[1:], *further.values())
                return
            self._write(result)
        name = name.removesuffix("_")
        if _gives_the_same(name, tensor, args, kwargs, result):
            self._know(result, tensor if tensor.value.dtype == result.dtype else Node("cast", result, (tensor,)))
            return
        if name == "cat":
            full = [each for each in nodes_in(args) if each.value.numel()]
            if len(full) == 1:
                self._know(result, full[0])
                return
        call = func, args, kwargs
        name, args = (_SWAPPED[name], args[::-1]) if name in _SWAPPED else (_NAMES.get(name, name), args)
        self.add(*_plain(name, args, kwargs), result, call=call)

    def _fills(self, name: str, args: Any) -> bool:
        """Whether a call writes columns of an empty tensor. Once all columns are written, a "cat" node replaces the writes."""
        base, index, value = (
            args
            if name == "setitem"
            else (args[0].args[0], args[0].args[1], args[1])
            if args[0].op == "getitem"
            else (None,) * 3
        )
        columns = index[-1] if isinstance(index, tuple) and index[:-1] == (Ellipsis,) else None
        if (
            base is None
            or base.op not in ("new_empty", "empty", "empty_like")
            or not isinstance(columns, slice)
            or columns.step
        ):
            return False
        start, stop, _ = columns.indices(base.value.shape[-1])
        if not isinstance(value, Node) or value.value.shape != (*base.value.shape[:-1], stop - start):
            return False
        base.kwargs.setdefault("written", {})[start] = value
        written = [base.kwargs["written"][at] for at in sorted(base.kwargs["written"])]
        starts = [sum(each.value.shape[-1] for each in written[:index]) for index in range(len(written) + 1)]
        if starts == [*sorted(base.kwargs["written"]), base.value.shape[-1]]:
            self.add("cat", (written, -1), {}, base.value, call=(torch.cat, (written, -1), {}))
        return True

    def _write(self, tensor: Any) -> None:
        """Records that a call writes into a tensor: for other tensors over the same memory no node has the values any more."""
        for each in [tensor] if isinstance(tensor, torch.Tensor) else tensor:
            for other in self._memory.get(each.untyped_storage().data_ptr(), set()) - {id(each)}:
                before = self._by_tensor[other]
                if before is self.rows:
                    self.refused = self.refused or "its code writes into the rows that it got"
                self._by_tensor[other] = Node("written", before.value, call=(None, (), {}))


def _are_the_same(value: Any, known: Any) -> bool:
    """The same tensor, or its numbers in another shape."""
    if value is known or known is None:
        return value is known
    return value.numel() == known.numel() and torch.equal(value.flatten(), known.flatten().to(value.dtype))


def again(node: Node, others: dict[int, torch.Tensor], depend: Any = None) -> torch.Tensor:
    """The value of a node if some nodes below it had other numbers. others: these numbers, by id of the node."""
    depend = dict.fromkeys(others, True) if depend is None else depend
    if id(node) not in others:
        if not _depends(node, depend):
            return node.value
        if node.op == "cast":
            others[id(node)] = again(node.args[0], others, depend).to(node.value.dtype)
        else:
            func, args, kwargs = node.call if node.op != "item" else (lambda whole, index: whole[index], node.args, {})
            if func is None:
                raise unclear(node, "it is written into, and no graph says what it holds")
            args, kwargs = (_with(each, lambda one: again(one, others, depend)) for each in (args, kwargs))
            first = [each.clone() for each in args[:1] if isinstance(each, torch.Tensor)]  # the call may write into it
            others[id(node)] = func(*first, *args[len(first) :], **kwargs)
    return others[id(node)]


def _set(base: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    base[index] = value
    return base


def _depends(node: Node, known: dict[int, bool]) -> bool:
    if id(node) not in known:
        known[id(node)] = node.op in _CREATES or any(_depends(each, known) for each in node.inputs)
    return known[id(node)]


def _with(value: Any, change: Any) -> Any:
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_with(each, change) for each in value)
    return {name: _with(each, change) for name, each in value.items()} if isinstance(value, dict) else value


def _is_of_numbers(node: Node) -> bool:
    """Whether a node depends on floating-point numbers that the layer got or holds."""
    return any(each.op in ("input", "parameter") and each.value.is_floating_point() for each in below(node))


def _gives_the_same(name: str, tensor: Any, args: Any, kwargs: Any, result: Any) -> bool:
    if tensor is None or not isinstance(result, torch.Tensor) or tensor.value.shape != result.shape:
        return False
    if name in ("dropout", "alpha_dropout", "feature_dropout"):
        given = named(("p", "training"), args[1:], kwargs)
        return not given.get("training", True) or given.get("p", 0.5) == 0
    if name == "mul" and type(args[1]) in (int, float) and args[1] == 1:
        return True
    kinds = {tensor.value.dtype, result.dtype}
    if len(kinds) > 1 and (name == "view" or not kinds <= TOLERANCE.keys()):  # a cast to 8 bits is quantization
        return False
    return name in _SAME or name in _SHAPED or (name == "getitem" and _is_whole(tensor.value, result))


def _is_whole(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether slicing took the whole tensor."""
    return result.data_ptr() == tensor.data_ptr() and result.stride() == tensor.stride()


def _plain(name: str, args: Any, kwargs: Any) -> tuple[str, Any, Any]:
    """(name, arguments, keyword arguments) of a call in the normal form that patterns read."""
    if name == "square" or (name == "mul" and len(args) == 2 and args[0] is args[1] and isinstance(args[0], Node)):
        return "pow", (args[0], 2), {}
    if name == "pow" and not kwargs and args[1] == -0.5:
        return "rsqrt", args[:1], {}
    if name in ("mean", "var"):
        given = named(("dim", "keepdim"), args[1:], kwargs)
        last = given.get("dim", given.get("axis")) in (-1, [-1], (-1,), args[0].value.dim() - 1)
        whole = name == "mean" or given.get("unbiased") is False or given.get("correction") == 0
        return (name, args[:1], {}) if last and whole and given.get("keepdim") else (f"{name}_of", args, kwargs)
    if name == "softmax":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        return ("softmax", args[:1], {}) if dim in (-1, args[0].value.dim() - 1) else ("softmax_of", args, kwargs)
    if name == "linear":
        given = named(("input", "weight", "bias"), args, kwargs)
        return "linear", (given["input"], given["weight"], given.get("bias")), {"transposed": False}
    if name == "addmm" and not kwargs:
        return "linear", (args[1], args[2], args[0]), {"transposed": True}
    if name == "matmul" and len(args) == 2 and args[1].op in _TRANSPOSING and args[1].inputs[0].op == "parameter":
        return "linear", (args[0], args[1].inputs[0], None), {"transposed": False}
    if name == "add" and not kwargs and getattr(args[0], "op", "") == "linear" and args[0].args[2] is None:
        x, weight, _ = args[0].args
        if isinstance(args[1], Node) and args[1].name == sibling(weight.name, "bias"):
            return "linear", (x, weight, args[1]), args[0].kwargs
    if name == "layer_norm" or name == "rms_norm":
        names = ("input", "shape", "weight", *(("bias",) if name == "layer_norm" else ()), "eps")
        given = named(names, args, kwargs)
        if len(given.get("shape", given.get("normalized_shape", ()))) != 1:
            return f"{name}_of", args, kwargs
        eps = given.get("eps", 1e-5 if name == "layer_norm" else None)
        return name, (given["input"], given.get("weight"), given.get("bias"), eps), {}
    if name == "gelu":
        form = kwargs.get("approximate", args[1] if len(args) > 1 else "none")
        return ("gelu" if form == "none" else "gelu_tanh"), args[:1], {}
    if name == "clamp":
        given = named(("input", "min", "max"), args, kwargs)
        return "clamp", (given["input"], given.get("min"), given.get("max")), {}
    if name in ("silu", "relu", "sigmoid", "tanh"):
        return name, args[:1], {}
    return name, args, kwargs


class Recorder(TorchFunctionMode):
    """Records the graphs of layers while a model runs: `with Recorder(layers) as recorder: run()`, then `recorder.graphs`."""

    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.graphs = [Graph(layer) for layer in layers]
        self._current: Graph | None = None
        self._closed = 0  # nesting depth within calls that are recorded as one node
        self._hooks = contextlib.ExitStack()

    def __enter__(self) -> Any:
        hook = self._hooks.enter_context
        for graph in self.graphs:
            for module in graph.layer.modules():
                name = graph.modules[id(module)]
                hook(module.register_forward_pre_hook(lambda *_, g=graph, n=name: g.within.append(n)))
                if experts_interface.looks_like_experts(module):
                    hook(module.register_forward_pre_hook(self._close))
                    hook(module.register_forward_hook(self._experts_done, with_kwargs=True))
                hook(module.register_forward_hook(graph.leave))
            begin, end = partial(self._begin, graph), partial(self._end, graph)
            hook(graph.layer.register_forward_pre_hook(begin, with_kwargs=True))
            hook(graph.layer.register_forward_hook(end))
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._hooks.close()
        return super().__exit__(*error)

    def _begin(self, graph: Graph, _: Any, args: Any, kwargs: Any) -> None:
        graph.begin(args, kwargs)
        self._current, self._closed = graph, 0

    def _end(self, graph: Graph, _module: Any, _args: Any, result: Any) -> None:
        self._current = None
        graph.end(result)

    def _close(self, *_: Any) -> None:
        self._closed += 1

    def _experts_done(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        self._closed -= 1
        graph = self._current
        if graph is not None and not self._closed and isinstance(result, torch.Tensor):
            graph.add("experts", graph.node_of((*args, *kwargs.values())), {"module": module}, result)

    @contextlib.contextmanager
    def one_node(self) -> Iterator[Graph | None]:
        """Records nothing within the block. Yields the graph to which the caller adds one node, or None outside of layers."""
        self._closed += 1
        try:
            yield self._current if self._closed == 1 else None
        finally:
            self._closed -= 1

    def attending(self, compute: Any, eager: bool) -> Any:
        """A function for Transformers' attention interface that records one node, "attend", of queries, keys and values.

        Eager attention ignores is_causal and sliding_window: only its mask makes it causal or hides keys before a window.
        """

        def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **further: Any) -> Any:
            if leaves_softcap_out(module):
                further.pop("softcap", None)
            with self.one_node() as graph:
                args, kwargs = (graph.node_of((query, key, value)), graph.node_of(further)) if graph else ((), {})
                result, weights = compute(module, query, key, value, attention_mask, **further)
                if graph is not None:
                    kwargs["mask"] = graph.node_of(attention_mask)
                    if kwargs.get("is_causal") is None:
                        kwargs["is_causal"] = getattr(module, "is_causal", True)
                    kwargs["is_causal"] = kwargs["is_causal"] and not eager
                    graph.biases.append(further.get("position_bias"))
                    graph.weights.append(weights)
                    graph.add("attend", args, kwargs, result)
            return result, weights

        return attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        graph = self._current
        if graph is None or self._closed:
            return func(*args, **kwargs)
        given = graph.node_of(args), graph.node_of(kwargs)
        result = func(*args, **kwargs)
        graph.record(func, args, kwargs, *given, result)
        return result


def unclear(node: Any, reason: str) -> Unknown:
    """The refusal of a layer because of a node."""
    where = f"{node.module}: " if isinstance(node, Node) and node.module else ""
    what = node.op if isinstance(node, Node) else ""
    return Unknown(f"{where}{what + ': ' if what else ''}{reason}")
