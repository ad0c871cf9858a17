"""The compatibility matrix of this machine or fleet: combinations of versions in which a library passed or failed, as data.

compatibility.matrix_path names the file, by default compat_matrix.json in cache_dir:
  {"version": 1, "rows": [{"backend": "flash_attn", "library": "2.8.3", "torch": "2.11", "cuda": 13, "sm": [90],
    "with": {"numpy": "<2.4"}, "result": "passed", "by": "..."}]}
A row is about the combinations that have all that it names. `layerzero backends --write-matrix` writes what this process found;
a pipeline may merge the files of its machines. A failed row keeps a library from being imported, without trying it again.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

from layerzero.errors import ConfigError
from layerzero.host import optional
from layerzero.host.policy import policy_in_force

FILE = "compat_matrix.json"
PASSED, FAILED = "passed", "failed"
_MOST_BYTES = 4 << 20
_KEYS: dict[str, type | tuple[type, ...]] = {
    "backend": str,
    "library": str,
    "torch": str,
    "cuda": int,
    "sm": list,
    "driver": str,
    "with": dict,
    "result": str,
    "by": str,
}
_REQUIRED = {"backend", "result", "by"}


def path() -> Path:
    """Returns the file that the policy names."""
    keys = policy_in_force()["keys"]
    named = keys["compatibility.matrix_path"]["value"]
    return Path(os.path.expanduser(named or os.path.join(keys["cache_dir"]["value"], FILE)))


def rows() -> tuple[dict[str, Any], ...]:
    """Returns the rows of the file, none if it does not exist. Raises ConfigError for a file that is no matrix."""
    file = path()
    try:
        stat = file.stat()
    except OSError:
        return ()
    return _read(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4)
def _read(file: Path, changed: int, size: int) -> tuple[dict[str, Any], ...]:
    def refuse(wanted: str, got: str) -> ConfigError:
        return ConfigError(str(file), wanted, got, "write it with `layerzero backends --write-matrix`, or remove it")

    if size > _MOST_BYTES:
        raise refuse(f"at most {_MOST_BYTES} bytes", str(size))
    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise refuse("a JSON document", f"{type(error).__name__}: {error}") from error
    if not isinstance(document, dict) or document.get("version") != 1 or not isinstance(document.get("rows"), list):
        raise refuse('{"version": 1, "rows": [...]}', json.dumps(document)[:100])
    for number, row in enumerate(document["rows"]):
        known = isinstance(row, dict) and _REQUIRED <= row.keys() <= _KEYS.keys()
        if not known or row["result"] not in (PASSED, FAILED):
            wanted = f"rows with {', '.join(sorted(_REQUIRED))} and some of {', '.join(_KEYS)}; result passed or failed"
            raise refuse(wanted, f"row {number}: {json.dumps(row)[:200]}")
        for key, value in row.items():
            if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
                raise refuse(f"rows[{number}].{key} of another type", json.dumps(value)[:100])
    return tuple(document["rows"])


def verdict(backend: str, version: str | None, here: Any) -> dict[str, Any] | None:
    """Returns the row about a library on this machine (compatibility.Here); a failed one comes before others; None: there is none."""
    about = [row for row in rows() if row["backend"] == backend and _is_about(row, version, here)]
    return next((row for row in about if row["result"] == FAILED), about[0] if about else None)


def _is_about(row: dict[str, Any], version: str | None, here: Any) -> bool:
    cuda = here.runtime.major if here.runtime is not None and here.runtime.name == "CUDA" else None
    return (
        _same(row.get("library"), version)
        and _same(row.get("torch"), here.torch)
        and row.get("cuda", cuda) == cuda
        and here.sms <= frozenset(row.get("sm", here.sms))
        and _same(row.get("driver"), driver_text(here))
        and all(_has(name, wanted) for name, wanted in row.get("with", {}).items())
    )


def driver_text(here: Any) -> str | None:
    """Returns the driver's version of CUDA, "13.0"; None without a driver."""
    return None if here.driver is None else f"{here.driver // 1000}.{here.driver % 1000 // 10}"


def _same(wanted: str | None, version: str | None) -> bool:
    """True if nothing is wanted, or the version's first numbers are the wanted ones: "2.11" is any 2.11."""
    if wanted is None:
        return True
    numbers = optional.release_numbers(wanted)
    return version is not None and optional.release_numbers(version)[: len(numbers)] == numbers


def _has(name: str, wanted: str) -> bool:
    version = optional.version_of(name)
    return version is not None and optional.meets(version, wanted)


def row_of(backend: dict[str, Any], here: Any, by: str) -> dict[str, Any] | None:
    """Returns the row of a library that was tried here (a record of report.report()); None: it was not, or is none."""
    if not backend["tried"] or not backend["installed"] or not backend["version"]:
        return None
    row: dict[str, Any] = {"backend": backend["name"], "library": backend["version"]}
    if here.torch:
        row["torch"] = ".".join(map(str, optional.release_numbers(here.torch)))
    if here.runtime is not None and here.runtime.name == "CUDA":
        row["cuda"] = here.runtime.major
    if here.sms:
        row |= {"sm": sorted(here.sms), "driver": driver_text(here)}
    errors = [issue["reason"] for issue in backend["compatibility"]["issues"] if issue["severity"] == "error"]
    return row | {"result": FAILED if errors else PASSED, "by": errors[0][:400] if errors else by}


def write(found: list[dict[str, Any]]) -> Path:
    """Writes the rows of a machine's backends in place of older ones about the same combinations; returns the file."""
    file = path()
    kept = [row for row in rows() if not any(_key(row) == _key(new) for new in found)]
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"version": 1, "rows": [*kept, *found]}, indent=1) + "\n")
    os.replace(temporary, file)
    return file


def _key(row: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in row.items() if key not in ("result", "by")}, sort_keys=True)
