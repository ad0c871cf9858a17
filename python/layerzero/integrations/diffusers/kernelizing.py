"""Replaces the parts of a diffusers model or pipeline that LayerZero computes, and undoes it exactly."""

import collections
from collections.abc import Iterator
from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_processor import Attention, MochiAttention
from diffusers.models.modeling_utils import ModelMixin
from torch import nn

from layerzero.errors import InvalidRequestError, ModelStateError, WrongTypeError
from layerzero.host import forks
from layerzero.integrations.diffusers import backend, captured, inputs, parts
from layerzero.integrations.diffusers.processors import PARTS, processor_of
from layerzero.integrations.diffusers.replacing import done, replace, restore, why_not_called
from layerzero.integrations.diffusers.report import KernelizeReport
from layerzero.integrations.kernelizing import is_of
from layerzero.integrations.modules import watch_copies

_MARK = "_layerzero_kernelized"
_ATTENTIONS = (Attention, MochiAttention, AttentionModuleMixin)
_BACKEND = "_attention_backend"
_REPORTED = {"attention": "attention", "posenc.rope": "RoPE"}
_LOCK = forks.lock()


class _NONE:
    """In place of a processor's own attribute that was not there; a class, which is the same one in a copied or pickled model."""


class _Mark:
    """Says in a model that it is kernelized. processors: (one, its class, the backend that was chosen) before."""

    def __init__(self) -> None:
        self.report = KernelizeReport()
        self.processors: list[tuple[Any, type, Any]] = []


def kernelize(
    model: Any, weights: str | None = None, *, quiet: bool = False, graphs: bool = True, **options: Any
) -> KernelizeReport:
    """Runs what LayerZero computes of a diffusers model, or of each model of a pipeline, through LayerZero from here on.

    Norms, modulated norms, activations, attention and its rotation, each compared with the model's own code before it is replaced; what is
    left has a reason in the report. Weights, their names and state_dict stay as they are. Gradients, autocast and torch.compile take the
    model's own code. Text encoders of a pipeline are kernelized as Transformers' models are. Twice changes nothing more; not while
    another thread runs the model. On a CUDA device forwards are replays of CUDA graphs where these are faster; `graphs=False`: never.
    Raises WrongTypeError for anything else, InvalidRequestError for options of Transformers' models.
    """
    if given := [name for name, value in {"weights": weights, **options}.items() if value is not None]:
        raise InvalidRequestError(
            given[0], "no such option for diffusers' models", "one", "their weights stay as they are"
        )
    with _LOCK, torch.no_grad():
        if isinstance(model, nn.Module):
            return _kernelize(model, graphs)
        if not isinstance(model, DiffusionPipeline):
            raise WrongTypeError("kernelize", "a model or a pipeline of diffusers", type(model).__name__)
        report = KernelizeReport()
        for name, component in _models_of(model):
            report.add_component(name, _kernelize_component(component, quiet, graphs))
        return report


def unkernelize(model: Any) -> bool:
    """Puts everything back as it was before `kernelize`; returns whether there was something to undo."""
    with _LOCK:
        if isinstance(model, nn.Module):
            marked = [module for module in model.modules() if _MARK in module.__dict__]
            for module in marked:
                _restore(module)
            return bool(marked)
        return any([_undo_component(component) for _, component in _models_of(model)])


def is_kernelized(model: nn.Module) -> bool:
    return _MARK in model.__dict__


def _models_of(pipeline: Any) -> Iterator[tuple[str, nn.Module]]:
    components = pipeline.components
    return ((name, part) for name, part in components.items() if isinstance(part, nn.Module))


def _kernelize_component(model: nn.Module, quiet: bool, graphs: bool) -> Any:
    if not is_of("transformers", model):
        return _kernelize(model, graphs)
    from layerzero.integrations.transformers import kernelize as of_transformers

    return of_transformers(model, quiet=quiet)


def _undo_component(model: nn.Module) -> bool:
    if not is_of("transformers", model):
        return unkernelize(model)
    from layerzero.integrations.transformers import unkernelize as of_transformers

    return of_transformers(model)


def _kernelize(model: nn.Module, graphs: bool) -> KernelizeReport:
    if _MARK in model.__dict__:
        return model.__dict__[_MARK].report
    if any("_layerzero_part" in module.__dict__ for module in model.modules()):
        got, fix = "a part of a kernelized model, or a model with such a part", "unkernelize that first"
        raise ModelStateError("kernelize: model", "a whole model", got, fix)
    mark = model.__dict__[_MARK] = _Mark()
    watch_copies(model)
    training = [(module, module.training) for module in model.modules()]
    model.eval()  # trials are made without dropout
    try:
        _replace_parts(model, mark)
        _replace_attention(model, mark)
    except BaseException:
        _restore(model)
        raise
    finally:
        for module, was in training:
            module.training = was
    for entry in mark.report.replaced.values():
        entry["calls"] = 0
    if graphs and isinstance(model, ModelMixin) and why_not_called(model) is None:
        captured.install(model, mark.report.captured)
    return mark.report


def _replace_parts(model: nn.Module, mark: _Mark) -> None:
    left: collections.Counter[tuple[str, str]] = collections.Counter()
    device = _device_of(model)
    for name, module in model.named_modules():
        kind, served = type(module), parts.SERVED.get(type(module))
        reason = parts.left_to_torch(kind, device)
        if reason is not None:
            left[kind.__name__, reason] += 1
        if served is None or reason is not None:
            continue
        reason = parts.why_not(module, served)
        if reason:
            mark.report.left[name] = reason
        else:
            replace(module, served.forward, mark.report.add(served.part, served.operation))
    for (called, reason), number in left.items():
        mark.report.left[called] = f"{reason} ({number} modules)"


def _device_of(model: nn.Module) -> str:
    return next((parameter.device.type for parameter in model.parameters()), "cpu")


# ---- attention


def _replace_attention(model: nn.Module, mark: _Mark) -> None:
    of_processor: dict[int, list[tuple[str, Any]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, _ATTENTIONS) and getattr(module, "processor", None) is not None:
            of_processor.setdefault(id(module.processor), []).append((name, module))
    for users in of_processor.values():
        _replace_processor(users, mark)


def _replace_processor(users: list[tuple[str, Any]], mark: _Mark) -> None:
    """Changes a processor, if each attention that uses it computes the same then."""
    processor = users[0][1].processor
    kind, reason = processor_of(processor)
    reason = reason or next((found for _, module in users if (found := why_not_called(module))), None)
    reason = reason or _why_not_dispatched(processor)
    reason = reason or _why_not_changed(users, processor, kind, mark)
    if reason is not None:
        mark.report.left |= {f"{name}: attention": reason for name, _ in users}
        return
    entries = processor.__dict__[PARTS] = {}
    for name, module in users:
        for operation in kind.operations:
            entries[operation] = mark.report.add(_REPORTED[operation], operation)
        if "posenc.rope" not in kind.operations and inputs.rotates(module):
            mark.report.left[f"{name}: rope"] = (
                "its code rotates by no function of diffusers' that the operation computes"
            )


def _why_not_changed(users: list[tuple[str, Any]], processor: Any, kind: type, mark: _Mark) -> str | None:
    """None once a processor is of another class by which each of its users returns the same."""
    expected = [inputs.results_of(module) for _, module in users]
    if not all(expected):
        return "no input can be made to compare the two"
    mark.processors.append((processor, type(processor), processor.__dict__.get(_BACKEND, _NONE)))
    processor.__class__ = kind
    if hasattr(processor, _BACKEND):
        setattr(processor, _BACKEND, backend.register_backend())
    before = done.calls["attention"]
    alike = all(inputs.agree(module, results) for (_, module), results in zip(users, expected, strict=True))
    if alike and done.calls["attention"] > before:
        return None
    _put_back(*mark.processors.pop())
    return "on a small input the operation returns another result" if not alike else "its code does not call attention"


def _why_not_dispatched(processor: Any) -> str | None:
    """None, or which choice of a dispatcher's backend excludes LayerZero's."""
    if not hasattr(processor, _BACKEND):
        return None
    if getattr(processor, "_parallel_config", None) is not None:
        return "context parallelism, which the backend does not have"
    names = {getattr(processor, _BACKEND), backend._registry._active_backend}
    other = names - {None, backend._names.NATIVE, backend.LAYERZERO}
    return f"diffusers was given the attention backend {', '.join(sorted(other))}" if other else None


def _put_back(processor: Any, kind: type, chosen: Any) -> None:
    processor.__class__ = kind
    processor.__dict__.pop(PARTS, None)
    processor.__dict__.pop(_BACKEND, None)
    if chosen is not _NONE:
        processor.__dict__[_BACKEND] = chosen


def _restore(model: nn.Module) -> None:
    mark = model.__dict__.pop(_MARK)
    captured.remove(model)
    for module in model.modules():
        restore(module)
    for before in reversed(mark.processors):
        _put_back(*before)
