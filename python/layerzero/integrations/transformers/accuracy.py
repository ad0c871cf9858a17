"""How much other weights change a model: its results before and after, for one input."""

import contextlib
from typing import Any, NamedTuple

import torch
from torch import nn

from layerzero.errors import InvalidRequestError
from layerzero.integrations.transformers import probe, structure
from layerzero.integrations.transformers.arguments import without_cache
from layerzero.integrations.transformers.recognise import observe
from layerzero.integrations.transformers.run.plan import plans_of


class Outcome(NamedTuple):
    """rows: logits, or the first output of a model without them. log_p: of logits."""

    rows: torch.Tensor
    log_p: torch.Tensor | None


_IDS = {"input_ids", "decoder_input_ids"}


def input_for(model: nn.Module, ids: torch.Tensor | None) -> dict[str, Any]:
    """The arguments of a forward: `ids` (1, n) or 64 made up, for an encoder and its decoder alike; or an image.

    Raises InvalidRequestError for models that read something else.
    """
    try:
        given = probe.inputs_of(model, without_encoder=True)
        size = _vocabulary(model) if given and given.keys() & _IDS else 0
    except Exception as error:  # whatever a model of unknown code raises
        raise _no_input(error) from error
    if given is None:
        got = f"one of {getattr(model, 'main_input_name', 'unknown input')}"
        wanted = "a model that reads text or images, to measure what they cost"
        raise InvalidRequestError("weights", wanted, got, "kernelize the part that reads text")
    if ids is not None:
        _check_ids(ids)
    if ids is not None and not size:
        raise InvalidRequestError("accuracy_ids", "none for a model that reads images", "ids", "leave them out")
    if size and ids is None:
        ids = torch.randint(0, size, (1, 64), generator=torch.Generator("cpu").manual_seed(7), device="cpu")
    encoder = given.get("encoder_outputs")
    if encoder is not None:
        given["encoder_outputs"] = type(encoder)(encoder[0][:1])
    given.pop("attention_mask", None)
    return given | {name: None if ids is None else ids.to(given[name].device) for name in _IDS & given.keys()}


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point() or ids.dim() != 2 or ids.shape[0] != 1:
        got = f"shape {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise InvalidRequestError("accuracy_ids", "token ids, a tensor of shape (1, n)", got, "tokenize a text")
    if ids.shape[1] < 2:
        raise InvalidRequestError("accuracy_ids", "at least 2 tokens", str(ids.shape[1]), "tokenize a longer text")


def _vocabulary(model: Any) -> int:
    """Of an encoder and a decoder the smaller one."""
    parts = [model, *(part for part in (getattr(model, name, None) for name in ("encoder", "decoder")) if part)]
    parts += [model.get_decoder()] if hasattr(model, "get_decoder") else []
    tables = [part.get_input_embeddings() for part in parts if hasattr(part, "get_input_embeddings")]
    return min(table.weight.shape[0] for table in tables if isinstance(table, nn.Embedding))


def _no_input(error: Exception) -> InvalidRequestError:
    return InvalidRequestError(
        f"weights: no input can be made up to tell what they cost: {structure.first_line(error)}"
    )


def outcome_of(model: nn.Module, given: dict[str, Any]) -> Outcome:
    given = given | without_cache(model)
    with torch.inference_mode():
        result: Any = model(**given)
    logits = getattr(result, "logits", None)
    if isinstance(logits, torch.Tensor) and logits.shape[-1] > 1:
        return Outcome(logits.float(), logits.float().log_softmax(-1))
    return Outcome(structure.tensors_of(result)[0].float(), None)


def first_outcome(model: nn.Module, given: dict[str, Any]) -> tuple[Outcome, set[str]]:
    """(outcome, paths of the linear layers that this input does not go through). Of a list of layers that it goes through
    none counts as such: which of a layer's experts rows go to is their choice.
    """
    lists = observe.lists_of(model)
    watched: dict[str, Any] = {path: model.get_submodule(path)[0] for path in lists if len(lists) > 1}  # type: ignore[index]
    within = tuple(f"{path}." for path in lists)
    watched |= {p: m for p, m in model.named_modules() if isinstance(m, nn.Linear) and not p.startswith(within)}
    reached: set[str] = set()
    counted = [(plan, dict(plan.why_aside)) for _, plan in plans_of(model)]
    with contextlib.ExitStack() as hooks:
        for path, module in watched.items():
            hooks.enter_context(module.register_forward_pre_hook(lambda *_, path=path: reached.add(path)))
        try:
            outcome = outcome_of(model, given)
        except Exception as error:  # whatever a model of unknown code raises
            raise _no_input(error) from error
        finally:
            for plan, before in counted:
                plan.why_aside = before
    return outcome, watched.keys() - reached


def compare(
    before: Outcome, after: Outcome, ids: torch.Tensor | None
) -> tuple[float, float, tuple[float, float] | None]:
    """(largest difference of a value, exp of the mean KL divergence, perplexities of `ids` if they are a text).

    Without logits 1 + the relative L2 error of the rows replaces the divergence.
    """
    difference = after.rows - before.rows
    error = difference.abs().max().item()
    ids = None if ids is None else ids.to(difference.device)
    if before.log_p is None or after.log_p is None:
        return error, 1 + (difference.norm() / before.rows.norm()).item(), None
    own, ours = before.log_p.double(), after.log_p.double()
    ratio = (own.exp() * (own - ours)).sum(-1).mean().exp().item()
    if ids is None or own.shape[:-1] != ids.shape or own.shape[-1] <= ids.max():
        return error, ratio, None

    def perplexity(log_p: torch.Tensor) -> float:
        return (-log_p[:, :-1].gather(-1, ids[:, 1:, None])).mean().exp().item()

    return error, ratio, (perplexity(own), perplexity(ours))
