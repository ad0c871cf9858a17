"""What findings about a model depend on, but for the values of its weights: one digest of its structure, code and versions."""

import functools
import hashlib
import inspect
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig

from layerzero import _layerzero
from layerzero.integrations.transformers import structure

_NAMES_OF_FILES = {"_name_or_path", "_commit_hash", "transformers_version"}  # of a configuration: where it is from
_PLAIN = (int, float, str, bool, type(None), torch.dtype)


def key_of(model: nn.Module) -> str | None:
    """The digest; None of a model that always has to be searched: with hooks, replaced forwards or parameters that are not plain."""
    digest = hashlib.sha256(repr(_versions()).encode())
    kinds: dict[type, int] = {}
    tensors: dict[int, int] = {}
    configs: dict[int, int] = {}
    for name, module in model.named_modules():
        if structure.why_not_plain(module) or any(map(_is_odd, module._buffers.values())):
            return None
        kind = kinds.setdefault(type(module), len(kinds))
        facts = [(key, _fact(value, configs)) for key, value in module.__dict__.items() if key not in _TABLES]
        held = [*module._parameters.items(), *module._buffers.items()]
        shapes = [(key, _shape(tensor, tensors)) for key, tensor in held]
        digest.update(repr((name, kind, [*module._modules], facts, shapes)).encode())
    for each in kinds:
        digest.update(repr((each.__module__, each.__qualname__, [*_code_of(each)])).encode())
    return digest.hexdigest()


_TABLES = {*nn.Module().__dict__} - {"training"}


def _versions() -> tuple[Any, ...]:
    return (
        transformers.__version__,
        torch.__version__,
        _layerzero.build_id(),
        _layerzero.device_id("cpu"),
        _own_code(),
        str(torch.get_default_dtype()),
    )


@functools.lru_cache
def _own_code() -> str:
    """Digest of the code of this package, since other code may have other findings."""
    digest = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_odd(buffer: Any) -> bool:
    return buffer is not None and (type(buffer) is not torch.Tensor or buffer.device.type == "meta")


def _shape(tensor: Any, known: dict[int, int]) -> Any:
    """Everything about a tensor except its values: also which other tensor of the model it is the same as."""
    if tensor is None:
        return None
    place = known.setdefault(id(tensor), len(known))
    return place, tuple(tensor.shape), tensor.stride(), str(tensor.dtype), tensor.device.type


def _fact(value: Any, configs: dict[int, int]) -> Any:
    """An attribute as plain values, or its type; a configuration that occurred before as its number."""
    if isinstance(value, _PLAIN):
        return str(value) if isinstance(value, torch.dtype) else value
    if isinstance(value, (tuple, list, set, frozenset)):
        facts = [_fact(each, configs) for each in value]
        return sorted(map(repr, facts)) if isinstance(value, (set, frozenset)) else facts
    if isinstance(value, dict):
        return [(str(key), _fact(each, configs)) for key, each in value.items() if key not in _NAMES_OF_FILES]
    if isinstance(value, PreTrainedConfig):
        seen = id(value) in configs
        place = configs.setdefault(id(value), len(configs))
        return (place,) if seen else (place, type(value).__qualname__, _fact(vars(value), configs))
    if isinstance(value, types.FunctionType):
        return value.__module__, value.__qualname__, _digest(value.__code__)
    return type(value).__module__, getattr(value, "__qualname__", type(value).__qualname__)


def _code_of(kind: Any) -> Iterator[tuple[str, str]]:
    """(name, digest) of the functions of a class from a model's file, and of those that its forward calls by name."""
    for each in kind.__mro__:
        own = not each.__module__.startswith(("torch.", "builtins")) and each.__module__ not in _COMMON
        for name, member in vars(each).items() if own else ():
            for function in _unwrapped(member):
                yield name, _digest(function.__code__)
    for function in structure.functions_of(kind.forward):
        yield function.__qualname__, _digest(function.__code__)


_COMMON = {"transformers.modeling_utils", "transformers.generation.utils", "transformers.integrations.peft"}


def _unwrapped(member: Any) -> Iterator[types.FunctionType]:
    """A function and those that it wraps."""
    while member is not None:
        if isinstance(member, types.FunctionType):
            yield member
        member = inspect.getattr_static(member, "__wrapped__", None)


def _digest(code: types.CodeType) -> str:
    return hashlib.sha256(repr(_of_code(code)).encode()).hexdigest()


def _of_code(code: types.CodeType) -> Any:
    """A representation that is the same in every process: without line numbers, and with sorted sets."""
    consts = [
        _of_code(const) if isinstance(const, types.CodeType) else sorted(map(repr, const)) if isinstance(const, frozenset) else repr(const)
        for const in code.co_consts
    ]  # fmt: skip
    return code.co_code, code.co_names, code.co_varnames, consts
