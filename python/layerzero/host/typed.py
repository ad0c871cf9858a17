"""Arguments of public functions are checked by their annotations: a wrong type is a WrongTypeError that names the argument,
not what Python says of a line inside."""

import collections.abc
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from layerzero.errors import InvalidRequestError, LayerZeroError, WrongTypeError

F = TypeVar("F", bound=Callable[..., Any])
Test = Callable[[Any], bool]
_LONGEST = 60  # characters of a wrong value in a message
_LISTS = (collections.abc.Iterable, collections.abc.Collection, collections.abc.Sequence, list)


def is_bool(value: Any) -> bool:
    """True for True, False and those of NumPy, which may not be installed."""
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


_SIMPLE: dict[Any, tuple[str, Test]] = {
    int: ("an integer", lambda v: hasattr(v, "__index__") and not isinstance(v, bool)),
    float: ("a number", lambda v: hasattr(v, "__float__") and not isinstance(v, bool)),
    bool: ("True or False", is_bool),
    str: ("a text", lambda v: isinstance(v, str)),
    None: ("None", lambda v: v is None),
    type(None): ("None", lambda v: v is None),
}


def typed(function: F) -> F:
    """Checks the arguments of each call first. Annotations that it does not know (Any, texts, type variables) admit all."""
    return _wrapped(function, False)


def typed_if_it_fails(function: F) -> F:
    """Checks the arguments of a call that raised an error of Python's: for functions that serve requests."""
    return _wrapped(function, True)


def _wrapped(function: F, late: bool) -> F:
    @functools.cache
    def tests() -> tuple[list[tuple[str, Any]], Any, dict[str, Any]]:
        return _tests(function)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not late:
            _check(function, tests(), args, named)
            return function(*args, **named)
        try:
            return function(*args, **named)
        except (TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
            if isinstance(error, LayerZeroError):
                raise
            _check(function, tests(), args, named)
            if isinstance(error, OverflowError):
                raise InvalidRequestError(function.__qualname__, "smaller numbers", str(error)) from error
            raise

    return cast(F, call)


def _tests(function: Callable[..., Any]) -> tuple[list[tuple[str, Any]], Any, dict[str, Any]]:
    """Returns the checks of arguments by place, of further ones by place, and of all by name."""
    places, rest, names = list[tuple[str, Any]](), None, dict[str, Any]()
    for p in inspect.signature(function).parameters.values():
        test = None if p.annotation is p.empty else _test_of(p.annotation)
        if p.kind is p.VAR_POSITIONAL:
            rest = test
        elif p.kind is not p.VAR_KEYWORD:
            names[p.name] = test
            if p.kind is not p.KEYWORD_ONLY:
                places.append((p.name, test))
    return places, rest, names


def _check(function: Callable[..., Any], tests: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    places, rest, names = tests
    for (name, test), value in zip(places, args, strict=False):
        _one(function, name, test, value)
    for value in args[len(places) :]:
        _one(function, "arguments", rest, value)
    for name, value in named.items():
        _one(function, name, names.get(name), value)


def _one(function: Callable[..., Any], name: str, test: tuple[str, Test] | None, value: Any) -> None:
    if test is None or test[1](value):
        return
    what = function.__qualname__.removesuffix(".__init__").partition(".<locals>")[0]
    text = repr(value)
    kind = type(value).__name__
    got = f"{kind} {text}" if len(text) <= _LONGEST and not text.startswith("<") else kind
    raise WrongTypeError(f"{what}: {name}", test[0], got)


def _test_of(annotation: Any) -> tuple[str, Test] | None:
    """Returns what an annotation wants in words, and whether a value is that; None: any value may be."""
    if annotation is Any:
        return None
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, inner = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return _any_of([_test_of(one) for one in inner])
    if origin in _LISTS:
        return _list_of(origin, _test_of(inner[0]) if inner else None)
    if origin is tuple and inner and Ellipsis not in inner:
        return _tuple_of([_test_of(one) for one in inner])
    if origin is os.PathLike:
        return "a path", lambda v: isinstance(v, os.PathLike)
    if origin is collections.abc.Callable:
        return "a function", callable
    if origin is collections.abc.Mapping:
        return "a dict", lambda v: isinstance(v, collections.abc.Mapping)
    if isinstance(origin, type) and origin is not object and not inner:
        return f"a {origin.__name__}", lambda v: isinstance(v, origin)
    return None


def _any_of(tests: list[tuple[str, Test] | None]) -> tuple[str, Test] | None:
    found = [test for test in tests if test is not None]
    if len(found) < len(tests):
        return None
    words = dict.fromkeys(word for word, _ in found)
    if "a path" in words:
        words.pop("a text", None)
    return " or ".join(words), lambda v: any(holds(v) for _, holds in found)


def _list_of(kind: type, item: tuple[str, Test] | None) -> tuple[str, Test]:
    def holds(value: Any) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, kind) and not hasattr(value, "__iter__"):
            return False
        again = isinstance(value, list | tuple | set | frozenset)  # others may be read once
        return item is None or not again or all(map(item[1], value))

    words = {"an integer": "integers", "a number": "numbers", "a text": "texts"}
    return f"a list of {words[item[0]]}" if item and item[0] in words else "a list", holds


def _tuple_of(items: Iterable[tuple[str, Test] | None]) -> tuple[str, Test]:
    tests = list(items)

    def holds(value: Any) -> bool:
        fits = isinstance(value, tuple | list) and len(value) == len(tests)
        return fits and all(test is None or test[1](one) for test, one in zip(tests, value, strict=True))

    return f"({', '.join(test[0] if test else 'any' for test in tests)})", holds
