"""The shape manifest: which calls a model makes, for the warm-up of the next process (the policy's jit.manifest_path).

{"schema_version": "1.0", "models": {hash: {"name", "updated_at" (ISO 8601, UTC), "calls": [description]}}}. The hash is that
of the model's configuration: a model that changed has no calls. Descriptions are those of `examples`.
"""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from layerzero import _layerzero
from layerzero.contracts import contracts
from layerzero.errors import ConfigError, file_error
from layerzero.host.files import replaced
from layerzero.host.policy import jit_settings
from layerzero.jit.examples import Call, text_of
from layerzero.models import disk_cache

VERSION = "1.0"
FILE = "shape_manifest.json"
LARGEST = 64 << 20  # bytes
MOST_CALLS = 100_000  # of one model


class Recorded(NamedTuple):
    """What a manifest has of one model."""

    model: str  # hash
    name: str
    updated_at: datetime.datetime
    calls: tuple[Call, ...]

    @property
    def age_days(self) -> float:
        return (datetime.datetime.now(datetime.timezone.utc) - self.updated_at).total_seconds() / 86400


def path() -> pathlib.Path:
    """Returns the file that the policy names, else shape_manifest.json in the cache folder."""
    named = jit_settings().manifest_path
    return pathlib.Path(named).expanduser() if named else disk_cache.cache_dir() / FILE


def model_hash(model: Any) -> str:
    """Returns the hash of what decides a model's calls: its configuration, or names, shapes and dtypes of its parameters."""
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        text = json.dumps(config.to_dict(), sort_keys=True, default=str)
    elif hasattr(model, "named_parameters"):
        text = json.dumps([[name, list(p.shape), str(p.dtype)] for name, p in model.named_parameters()])
    else:
        text = str(model)
    return hashlib.sha256(text.encode()).hexdigest()


def read(file: str | os.PathLike[str] | None = None) -> dict[str, Recorded]:
    """Returns what a manifest has, by hash; nothing if the file of the policy does not exist. ConfigError: it is no manifest."""
    place = pathlib.Path(file) if file is not None else path()
    if file is None and not place.exists():
        return {}
    try:
        _layerzero.check_trusted(str(place))
        if place.stat().st_size > LARGEST:
            raise ConfigError(str(place), f"at most {LARGEST} bytes", f"{place.stat().st_size}")
        data = json.loads(place.read_text())
        if data["schema_version"] != VERSION:
            raise ConfigError(f"{place}: schema_version", VERSION, repr(data["schema_version"]), "record it again")
        return {key: _recorded(key, one) for key, one in data["models"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(str(place), "a shape manifest", f"{type(error).__name__}: {error}", "remove it") from error


def _recorded(key: str, one: Any) -> Recorded:
    when = datetime.datetime.fromisoformat(one["updated_at"])
    if when.tzinfo is None:
        raise ValueError("updated_at without a time zone")
    return Recorded(key, str(one["name"]), when, tuple(_checked(call) for call in one["calls"]))


def _checked(call: Any) -> Call:
    """Returns a description whose operation and arguments exist."""
    known = {p["name"] for p in contracts()[call["operation"]]["params"]}
    unknown = {*call["tensors"], *call["scalars"]} - known
    if unknown:
        raise ValueError(f"{call['operation']} has no parameter {', '.join(sorted(unknown))}")
    for tensor in call["tensors"].values():
        sizes = (*tensor["shape"], *tensor["strides"])
        if len(tensor["shape"]) != len(tensor["strides"]) or not all(type(n) is int and n >= 0 for n in sizes):
            raise ValueError(f"{call['operation']}: a shape or strides that no tensor has")
    if not isinstance(call["device"], str):
        raise TypeError("device is no text")
    return call


def record(model: str, name: str, calls: Iterable[Call], file: str | os.PathLike[str] | None = None) -> int:
    """Adds calls of a model to the manifest, which other processes may be writing too; returns how many are new."""
    place = pathlib.Path(file) if file is not None else path()
    with _locked(place):
        known = read(place) if place.exists() else {}
        before = known[model].calls if model in known else ()
        merged = {text_of(call): call for call in (*before, *calls)}
        kept = list(merged.values())[-MOST_CALLS:]
        models = {one.model: _plain(one) for one in known.values()}
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        models[model] = {"name": name, "updated_at": now, "calls": kept}
        text = json.dumps({"schema_version": VERSION, "models": models}, indent=1)
        with replaced(place, 0o600, durable=True) as target:
            target.write(text.encode())
    return len(merged) - len(before)


@contextlib.contextmanager
def _locked(place: pathlib.Path) -> Iterator[None]:
    """Keeps other writers of the manifest waiting, where the file system has locks. FileError: it cannot be written."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = place.with_name(f".{place.name}.lock").open("ab")
    except OSError as error:
        raise file_error("jit.manifest_path", "a file that can be written", place, error) from error
    with lock:
        with contextlib.suppress(OSError):  # no locks here, as on some network file systems
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _plain(one: Recorded) -> dict[str, Any]:
    return {"name": one.name, "updated_at": one.updated_at.isoformat(timespec="seconds"), "calls": list(one.calls)}


def stale(one: Recorded) -> bool:
    """True if the record is older than jit.manifest_stale_days."""
    days = jit_settings().manifest_stale_days
    return days > 0 and one.age_days > days


def warn_if_stale(one: Recorded) -> None:
    if stale(one):
        warnings.warn(
            f"the shape manifest of {one.name} is {one.age_days:.0f} days old (jit.manifest_stale_days: "
            f"{jit_settings().manifest_stale_days:g}): calls may have changed; lz.warmup(model, ..., record=True) makes it again",
            stacklevel=3,
        )
