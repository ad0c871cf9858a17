"""Recognises a norm, an MLP or a linear layer by itself: the graph of its code on a few made-up rows is matched like the parts of a
layer, and its result compared with the operation's."""

import inspect
from typing import Any

import torch

from layerzero import _layerzero
from layerzero.integrations.modules import agrees, normal
from layerzero.integrations.transformers import structure, thresholds
from layerzero.integrations.transformers.layers import Mlp, Norm, Unknown
from layerzero.integrations.transformers.recognise.layout import rows_of
from layerzero.integrations.transformers.recognise.match import match, uncast
from layerzero.integrations.transformers.recognise.patterns import mlp as mlps
from layerzero.integrations.transformers.recognise.patterns import norm as norms
from layerzero.integrations.transformers.recognise.patterns.delta import GATED
from layerzero.integrations.transformers.recognise.patterns.linear import Linears, leaves_bias_out, name_of
from layerzero.integrations.transformers.recognise.trace import Graph, Recorder

_linear = _layerzero.ops["linear"]


def graph_of(module: Any, *rows: torch.Tensor) -> Graph:
    """The graph of a module's code for these rows. Raises Unknown if it returns something else than rows, or if a few rows do not show
    what it computes."""
    half = any(parameter.dtype == torch.float16 for parameter in module.parameters())
    reason = structure.why_not_plain(module) or thresholds.why_not_shown(module, half)
    if reason:
        raise Unknown(reason)
    recorder = Recorder([module])
    try:
        with torch.no_grad(), structure.evaluating(module), recorder:
            module(*rows)
    except (torch.OutOfMemoryError, MemoryError):  # says nothing about the code
        raise
    except Exception as error:  # of code that takes other arguments than these
        raise Unknown(f"its code takes something else than rows: {structure.first_line(error)}") from error
    graph = recorder.graphs[0]
    clamps = sum(node.op == "clamp" for node in graph.nodes)
    if graph.refused or clamps < thresholds.clamps_of(module, half):
        raise Unknown(graph.refused or "its code calls clamp: no few rows show what that does")
    if graph.result is None or graph.tuples:
        raise Unknown("returns something else than rows")
    kept = {torch.float32, torch.float64, *(each.dtype for each in (*rows, *module.parameters()))}
    rounded = [node.value.dtype for node in graph.nodes if node.op == "cast" and node.value.dtype not in kept]
    if rounded:  # which matching skips, and numbers of 16 bits may hide
        raise Unknown(f"its code rounds to {rounded[0]}")
    return graph


def norm_of(module: Any) -> tuple[Norm, bool]:
    """(the Norm that a module is, whether it is multiplied with the silu of a gate); raises Unknown."""
    rows = _rows_for_norm(module)
    if len(inspect.signature(type(module).forward).parameters) > 2:
        return _gated_norm_of(module, rows), True
    graph = graph_of(module, rows)
    found = norms.norm_of(graph.result, graph)
    if (
        found is None
        or rows_of(found[1]) is not graph.rows
        or not _same_norm(module, found[0], rows, graph.result.value)
    ):
        raise Unknown("computes neither rms_norm nor layer_norm of its weight and epsilon")
    return found[0], False


def _gated_norm_of(module: Any, rows: torch.Tensor) -> Norm:
    graph = graph_of(module, rows, (4 * normal(*rows.shape, seed=8)).to(rows))
    gated = match(GATED, graph.result)
    found = None if gated is None else norms.norm_of(gated["normed"], graph)
    gate = None if gated is None else uncast(gated["gate"])
    if found is None or rows_of(found[1]) is not graph.rows or gate is None or gate.op != "input" or gate is graph.rows:
        raise Unknown("computes no rms_norm times the silu of a gate")
    made = structure.gated_norm(rows, gate.value, module.weight.detach(), found[0].eps, found[0].offset)
    if found[0].operation != "rms_norm" or not agrees(made, graph.result.value):
        raise Unknown("computes no rms_norm times the silu of a gate")
    return found[0]


def _same_norm(module: Any, norm: Norm, rows: torch.Tensor, expected: torch.Tensor) -> bool:
    given = module._parameters.get("weight"), module._parameters.get("bias"), norm.eps, norm.offset
    with torch.no_grad():
        pairs = [(rows, expected)]
        if given[0] is None:  # nothing says in which dtype rows will come, and code may return another
            pairs.append((rows.bfloat16(), structure.result_of(module, rows.bfloat16())))
        same = all(own is not None and agrees(structure.norm(norm.operation, each, *given), own) for each, own in pairs)
        return norm.eps == structure.eps_of(module) and same


def _rows_for_norm(module: Any) -> torch.Tensor:
    """Rows (1, 3, width) that tell norms apart: they have a mean, which LayerNorm removes, and one is near zero, which shows the epsilon.
    A module that takes axis 1 for channels fails on them."""
    weight, shape = module._parameters.get("weight"), getattr(module, "normalized_shape", (64,))
    rows = normal(3, weight.numel() if weight is not None else shape if isinstance(shape, int) else shape[-1]) + 0.5
    rows[2] *= structure.eps_of(module) ** 0.5
    return (rows if weight is None else rows.to(weight))[None]


def mlp_of(module: Any) -> structure.GatedMlp:
    """The GatedMlp that a module is, out(activation(gate(x)) * up(x)); raises Unknown."""
    linears = [part for part in module.children() if isinstance(part, torch.nn.Linear)]
    others = [part for part in module.children() if part not in linears]
    for part in others:
        if hasattr(part, "in_features"):  # an adapter's
            raise Unknown(f"{type(part).__module__}.{type(part).__name__} is not exactly torch.nn.Linear")
    if len(linears) < 2 or any(True for part in others for _ in (*part.parameters(), *part.buffers())):
        raise Unknown("has other parts than gate_proj, up_proj, down_proj and act_fn")
    for reason in filter(None, map(structure.why_not_linear, linears)):
        raise Unknown(reason)
    rows = structure.rows_for(linears[0].weight, linears[0].in_features)
    graph = graph_of(module, rows)
    out = rows_of(graph.result)
    found = mlps.mlp_of(graph, Linears(graph), out) if name_of(out) is not None else None
    mlp = None if found is None or found.reads is not graph.rows else _gated(found.part, module)
    if found is not None and found.part.gate is not None and found.part.operation == "activation":
        raise Unknown(f"no operation has a gate of its activation, {found.part.kind}")
    if mlp is None or not structure.agrees_by_row(structure.run_mlp(module, rows, mlp), graph.result.value):
        raise Unknown("computes something else than out(activation(gate) * up)")
    return mlp


_PACKED = {
    ("swiglu", None): ("silu_and_mul", {}),
    ("geglu", "none"): ("gated_activation", {"activation": "gelu"}),
    ("geglu", "tanh"): ("gated_activation", {"activation": "gelu_tanh"}),
}


def _gated(mlp: Mlp, module: Any) -> structure.GatedMlp | None:
    gate, up, kind = mlp.gate, mlp.up, (mlp.operation, mlp.kind)
    if gate is None or mlp.norm is not None or kind not in _PACKED:
        return None
    packed = gate.linear == up.linear
    if gate.column != 0 or up.column != (gate.width if packed else 0):
        return None
    operation, further = _PACKED[kind] if packed else (mlp.operation, {"approximate": mlp.kind} if mlp.kind else {})
    silent = tuple(name for name in module._modules if name not in mlp.modules)
    return structure.GatedMlp(
        operation, further, (gate.linear,) if packed else (gate.linear, up.linear), mlp.out, silent
    )


def why_not_linear(module: Any) -> str | None:
    """None, or why a module is not a plain linear layer. For a subclass its code is read."""
    reason = structure.why_not_linear(module)
    if reason or type(module) is torch.nn.Linear:
        return reason
    name = type(module).__name__
    try:
        rows = structure.rows_for(module.weight, module.in_features)
        graph = graph_of(module, rows)
        result = graph.result
        plain = name_of(result) == "" and result.args[0] is graph.rows and not result.kwargs["transposed"]
        same = plain and not leaves_bias_out(result, module)
        with torch.no_grad():
            made = _linear(rows, module.weight, module.bias)
        same = same and structure.agrees_by_row(made, result.value)
    except Exception as error:  # of code that nobody knows
        return f"{name}: {structure.first_line(error)}"
    return None if same else f"{name} computes something else than torch.nn.Linear"
