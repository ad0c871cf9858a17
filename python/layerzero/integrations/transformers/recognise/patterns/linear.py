"""Linear layers: nn.Linear and Conv1D, whose weight is stored as [inputs, outputs]."""

from typing import Any

from layerzero.integrations.transformers import structure
from layerzero.integrations.transformers.recognise.match import uncast
from layerzero.integrations.transformers.recognise.nodes import sibling
from layerzero.integrations.transformers.recognise.trace import Graph, unclear


class Linears:
    """The linear layers that the description of a layer uses, each checked once. transposed: those stored as [inputs, outputs]."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.used: list[str] = []
        self.transposed: list[str] = []

    def use(self, node: Any) -> str:
        """The path of the module whose weight a node multiplies with; raises Unknown where it is no plain linear layer."""
        name = name_of(node)
        if name is None:
            raise unclear(node, "no linear layer of its own")
        if name not in self.used:
            transposed = node.kwargs["transposed"]
            why_not = structure.why_not_conv1d if transposed else structure.why_not_linear
            reason = why_not(self.graph.layer.get_submodule(name))
            if reason or leaves_bias_out(node, self.graph.layer.get_submodule(name)):
                raise unclear(node, reason or "its code leaves the bias out")
            self.used.append(name)
            self.transposed += [name] if transposed else []
        return name


def name_of(node: Any) -> str | None:
    """The path of a linear layer's module, where weight and bias are its own."""
    if node.op != "linear":
        return None
    weight, bias = uncast(node.args[1]), None if node.args[2] is None else uncast(node.args[2])
    path, key = weight.place
    if weight.op != "parameter" or key != "weight" or (bias is not None and bias.name != sibling(weight.name, "bias")):
        return None
    return path


def leaves_bias_out(node: Any, module: Any) -> bool:
    """Whether a product does not add the bias that its module has."""
    return node.args[2] is None and module.bias is not None
