"""Recognises how experts are chosen: the code around them runs on weights made up, and `moe_route` is tried on the same."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from layerzero import _layerzero
from layerzero.integrations.transformers import experts as experts_interface
from layerzero.integrations.transformers import structure, thresholds
from layerzero.integrations.transformers.layers import Experts, Route, Unknown

_route = _layerzero.ops["moe_route"]
_ROWS = 96
_RULES = [*itertools.product(("softmax", "sigmoid", "sqrt_softplus"), (False, True))]
_SPARSE = "sparsemixer"


class Dispatched(NamedTuple):
    """A call of experts: rows (tokens, d), ids and weights (tokens, k) of the chosen ones, and the weighted sums."""

    name: str
    module: nn.Module
    rows: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    result: torch.Tensor


class Reader(NamedTuple):
    """A module that may choose among experts, by its path."""

    name: str
    module: nn.Module


class _Recorder(nn.Module):
    """Replaces experts: records its arguments and returns zeros."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self.__dict__.update({name: value for name, value in vars(experts).items() if not name.startswith("_")})
        self.seen: list[Any] = []

    def forward(self, hidden_states, top_k_index, top_k_weights):
        self.seen.append((hidden_states, top_k_index, top_k_weights))
        return torch.zeros_like(hidden_states)


class _Trial(NamedTuple):
    """What the code around experts chose for made-up weights: `held` are its vectors of one number for each expert."""

    rows: torch.Tensor
    weight: torch.Tensor
    held: dict[tuple[str, str], torch.Tensor]
    ids: torch.Tensor
    weights: torch.Tensor
    numbers: set[float]  # that its modules keep, of which the constants of a rule are some
    clamped: list[Any]  # (what went through a clamp, its bounds) of each clamp
    compared: list[str]  # the functions by which it compares numbers


def experts_of(dispatched: Dispatched, readers: list[Any], layer: nn.Module) -> tuple[Experts, Any]:
    """(Experts, the call of their router) among the calls that read the same rows; raises Unknown."""
    module: Any = dispatched.module
    gate, reason = experts_interface.gate_of(module)
    if reason:
        raise Unknown(f"{dispatched.name}: {reason}")
    number = experts_interface.sizes_of(module)[0]
    reason = f"no weight of {number} rows chooses among its experts"
    for call in readers:
        weight = call.module._parameters.get("weight")
        if weight is None or weight.shape != (number, dispatched.rows.shape[-1]):
            continue
        try:
            route = _route_of(layer, call, dispatched)
        except Unknown as unknown:
            reason = f"{call.name}: {unknown}"
            continue
        chosen, transposed = dispatched.ids.shape[-1], bool(module.is_transposed)
        return Experts(dispatched.name, call.name, chosen, route, gate, transposed), call
    raise Unknown(f"{dispatched.name}: {reason}")


def _route_of(layer: nn.Module, call: Any, dispatched: Dispatched) -> Route:
    """By trials in float32, and in bfloat16 for whether it makes its logits in float32 then too."""
    reason = structure.why_not_plain(call.module)
    if reason:
        raise Unknown(reason)
    names = [path.split(".") for path in (call.name, dispatched.name)]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*names, strict=False))
    block = ".".join(first for first, _ in same)
    router, experts = (path[len(block) + 1 :] for path in (call.name, dispatched.name))
    if not block or not router or not experts:
        raise Unknown("no module has both it and its experts")
    bare = _without(layer.get_submodule(block), experts, _Recorder(dispatched.module))
    exact = _tried(bare, router, experts, torch.float32)
    found = next(_fitting(exact, (router, "bias")), None)
    if found is None:
        raise Unknown("it chooses in a way that was not recognised")
    route, correction = found
    half = _tried(bare, router, experts, torch.bfloat16)
    wide, narrow = (_distance(half, route, correction, _logits(half, router, w)) for w in (True, False))
    if wide < narrow and (router, "bias") in exact.held:
        raise Unknown("it adds a bias to logits that are made in float32")
    held = None if correction is None else (f"{block}.{correction[0]}".rstrip("."), correction[1])
    return route._replace(wide=wide < narrow, correction=held)


def _without(module: nn.Module, path: str, stand_in: nn.Module) -> nn.Module:
    """The same module, whose part at `path` is another one; they share everything else."""
    same = copy.copy(module)
    same.__dict__["_modules"] = dict(module._modules)
    head, _, rest = path.partition(".")
    same._modules[head] = _without(module.get_submodule(head), rest, stand_in) if rest else stand_in
    return same


def _tried(bare: nn.Module, router: str, experts: str, dtype: torch.dtype) -> _Trial:
    block: Any = copy.deepcopy(bare).to("cpu", dtype)
    own: Any = block.get_submodule(router)
    recorder: Any = block.get_submodule(experts)
    number, width = own.weight.shape
    weight = structure.normal(number, width, seed=8) * 2 * width**-0.5
    rows = structure.normal(2, _ROWS // 2, width, seed=9)
    # Some rows give all logits near -30: what is added to a sum of scores shows there.
    weight[:, 0] = 1
    rows[0, ::8, 0] = -30
    held: dict[tuple[str, str], torch.Tensor] = {}
    with torch.no_grad():
        own.weight.copy_(weight)
        for name, module in block.named_modules():
            for tensors in (module._parameters, module._buffers):
                for key, tensor in tensors.items():
                    if (
                        tensor is not None
                        and tensor.is_floating_point()
                        and tensor.numel() == tensor.shape[-1] == number
                    ):
                        tensor.copy_(structure.normal(number, seed=10 + len(held)).view(tensor.shape) / 4)
                        held[name, key] = tensor.detach().flatten().clone()
    clamped: list[Any] = []
    compared: list[str] = []
    calls = thresholds.Calls(lambda given, *bounds: clamped.append((given.clone(), *bounds)), compared.append)
    try:
        with torch.inference_mode(), structure.evaluating(block), calls:
            block(rows.to(dtype))
        ((given, ids, weights),) = recorder.seen
    except Exception as error:
        raise Unknown(f"it could not be tried alone: {structure.first_line(error)}") from error
    tables = [vars(module) for module in block.modules()]
    tables += [vars(table["config"]) for table in tables if hasattr(table.get("config"), "__dict__")]
    numbers = {float(v) for table in tables for v in table.values() if type(v) in (int, float)}
    return _Trial(given.flatten(0, -2), own.weight.detach(), held, ids, weights, numbers, clamped, compared)


def _logits(trial: _Trial, router: str, wide: bool) -> torch.Tensor:
    rows, weight, bias = trial.rows, trial.weight, trial.held.get((router, "bias"))
    if wide:
        rows, weight, bias = rows.float(), weight.float(), None if bias is None else bias.float()
    return nn.functional.linear(rows, weight, bias)


def _fitting(trial: _Trial, bias: tuple[str, str]) -> Iterator[tuple[Route, tuple[str, str] | None]]:
    """(Route, where its correction is held) of those that choose the same experts for each row, and weigh them alike."""
    number, chosen = len(trial.weight), trial.ids.shape[-1]
    logits = _logits(trial, bias[0], wide=True)
    expected = _spread(trial.weights, trial.ids, number)
    sparse = [Route(_SPARSE, False, jitter=jitter) for jitter in sorted(trial.numbers)]
    sparse = [r for r in sparse if _gives(r, logits, chosen, expected) and all(map(_are_sizes, trial.clamped))]
    if len(sparse) == 1:
        yield sparse[0], None
    if trial.compared:  # as a sparse mixer alone does
        return
    for correction in (None, *(key for key in trial.held if key != bias)):
        for groups in _groupings(number, chosen, trial.numbers):
            for scoring, renormalize in _RULES:
                least = _least_sum(trial, scoring, logits) if renormalize and trial.clamped else 0.0
                if trial.clamped and not least:
                    continue
                route = Route(scoring, renormalize, 1.0, *groups, min_sum=least)
                actual = _chosen(route, logits, chosen, None if correction is None else trial.held[correction])
                if torch.equal(actual != 0, expected != 0):
                    scales = (1.0, *sorted(trial.numbers - {0.0, 1.0}))
                    for scale in scales:
                        if torch.allclose(actual * scale, expected, rtol=1e-5, atol=0):
                            yield route._replace(scale=scale), correction
                            break


def _gives(route: Route, logits: torch.Tensor, chosen: int, expected: torch.Tensor) -> bool:
    actual = _chosen(route, logits, chosen, None)
    return torch.equal(actual != 0, expected != 0) and torch.allclose(actual, expected, rtol=1e-5, atol=0)


def _are_sizes(clamped: Any) -> bool:
    """Whether a clamp takes the larger of a logit's size and the best logit, as a sparse mixer does."""
    given, least, most = clamped
    return most is None and isinstance(least, torch.Tensor) and bool((given >= 0).all()) and least.shape[-1] == 1


def _least_sum(trial: _Trial, scoring: str, logits: torch.Tensor) -> float:
    """The bound of the one clamp of a trial, where that is of the sum of the chosen experts' scores; else 0."""
    ((given, least, most), *further) = trial.clamped
    if further or most is not None or not isinstance(least, float):
        return 0.0
    scores = _chosen(Route(scoring, False), logits, logits.shape[-1], None).gather(-1, trial.ids.long())
    return least if torch.allclose(given.flatten(), scores.sum(-1), rtol=1e-5, atol=0) else 0.0


def _groupings(number: int, chosen: int, numbers: set[float]) -> Iterator[tuple[int, int, str]]:
    """(number of groups, of those that experts are chosen from, by what): no groups first."""
    yield 1, 1, "max"
    for groups in range(2, number):
        for top in range(1, groups):
            if number % groups == 0 and {groups, top} <= numbers and chosen <= number // groups * top:
                yield groups, top, "max"
                yield groups, top, "top2_sum"


def _chosen(route: Route, logits: torch.Tensor, chosen: int, correction: torch.Tensor | None) -> torch.Tensor:
    weights, ids = _route(logits, chosen, bias=correction, **route.arguments)
    return _spread(weights, ids, logits.shape[-1])


def _distance(trial: _Trial, route: Route, correction: Any, logits: torch.Tensor) -> float:
    """How far the weights are from those of the trial, in most rows."""
    expected = _spread(trial.weights, trial.ids, logits.shape[-1])
    actual = _chosen(route, logits, trial.ids.shape[-1], trial.held.get(correction))
    return float((actual.to(trial.weights.dtype) - expected).norm(dim=-1).median())


def _spread(weights, ids, number):
    """(tokens, experts): 0 for those that were not chosen."""
    return torch.zeros(len(ids), number, dtype=torch.float32).scatter_(1, ids.long(), weights.float())
