"""The findings of `kernelize` about a model, kept on disk for the next model of the same structure.

A finding is the answer to a question about a module or a list of layers. It does not depend on the values of weights, so it
may be wrong for another model: a model that was changed by findings is compared with its own code (`proof`), and searched if
it differs.
"""

import dataclasses
import hashlib
import inspect
import json
import logging
import pathlib
from collections.abc import Callable
from typing import Any

from layerzero.host.files import replaced
from layerzero.integrations.transformers import layers, structure
from layerzero.models.disk_cache import cache_dir, model_folder, touch

LEAST_MODULES = 100  # of a smaller model the search takes a tenth of a second, and a file is not worth it
_FORMAT = 1
log = logging.getLogger("layerzero.kernelize")


class Wrong(Exception):
    """Findings do not fit the model."""


class Findings:
    """Records the answers of a search, or returns stored ones for modules that the proof runs."""

    def __init__(self, key: str | None = None, kept: dict[str, Any] | None = None, proof: Any = None) -> None:
        self.key, self.kept, self.proof = key, kept, proof
        self.answers: dict[str, Any] = {}
        self.depend_on_values = False  # another model of this structure may have other answers

    @property
    def are_kept(self) -> bool:
        return self.kept is not None

    def of(self, question: str, modules: Any, find: Callable[[], Any]) -> Any:
        """The answer to a question about modules."""
        if self.kept is not None and all(id(module) in self.proof.reached for module in modules):
            if question not in self.kept:
                raise Wrong(f"has no answer to {question}")
            answer = self.kept[question]
        else:
            answer = find()
            log.debug("%s: %s", question, answer)
        self.answers[question] = answer
        return answer

    def write(self) -> None:
        """Writes the answers to disk; if that fails they are not kept."""
        if self.key is None or self.are_kept or self.depend_on_values:
            return
        try:
            _write(_path_of(self.key), self.key, encoded(self.answers))
        except (OSError, TypeError) as error:
            log.info("findings are not kept: %s", error)


def kept_for(key: str) -> dict[str, Any] | None:
    """The stored answers for a structure; None if there are none, or the file is not one that `write` made."""
    path = cache_dir()
    try:
        path = _path_of(key)
        content = json.loads(path.read_bytes())
        answers = content["answers"]
        if (content["format"], content["key"], content["sha256"]) != (_FORMAT, key, _digest(answers)):
            raise ValueError("it is of another structure or version, or was changed")
        found = decoded(answers)
        if not isinstance(found, dict):
            raise ValueError("it holds no answers")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        log.info("findings in %s are not used: %s", path, error)
        return None
    touch(path.parent)
    return found


def _path_of(key: str) -> pathlib.Path:
    return model_folder(key, f"findings-v{_FORMAT}") / "findings.json"


def _digest(answers: Any) -> str:
    return hashlib.sha256(json.dumps(answers, sort_keys=True).encode()).hexdigest()


def _write(path: pathlib.Path, key: str, answers: Any) -> None:
    with replaced(path, folders=True) as file:
        text = json.dumps({"format": _FORMAT, "key": key, "sha256": _digest(answers), "answers": answers})
        file.write(text.encode())


# ---- answers as JSON


def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else kind._fields


_KINDS: dict[str, Any] = {
    name: kind
    for name, kind in {**vars(layers), "GatedMlp": structure.GatedMlp}.items()
    if inspect.isclass(kind) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
}


def encoded(value: Any) -> Any:
    """JSON of plain values, tuples as lists, dictionaries and the records that describe layers; raises TypeError of others."""
    name = type(value).__name__
    if _KINDS.get(name) is type(value):
        return {name: [encoded(getattr(value, field)) for field in _fields_of(type(value))]}
    if type(value) is tuple:
        return [*map(encoded, value)]
    if type(value) is dict:
        return {"dict": [[key, encoded(held)] for key, held in value.items()]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"an answer holds a {type(value).__name__}")


def decoded(value: Any) -> Any:
    """What `encoded` was given; raises ValueError, KeyError or TypeError of anything else."""
    if isinstance(value, list):
        return tuple(map(decoded, value))
    if not isinstance(value, dict):
        return value
    ((name, held),) = value.items()
    return {key: decoded(each) for key, each in held} if name == "dict" else _KINDS[name](*map(decoded, held))
