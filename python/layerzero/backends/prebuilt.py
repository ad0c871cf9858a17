"""Compiled code that a library takes from elsewhere than its own wheel: packages of built modules, and folders of them.

`prebuilt.json` in a backend's folder lists them: {"distribution", "import", "what"} of a package, {"folder", "what"} of a
folder inside the library's own package, {"variable", "what"} of a folder that an environment variable names. Nothing here
imports a package.
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from layerzero.backends import runtime, shared_objects
from layerzero.host import optional

FOLDER = Path(__file__).parent
HEAD = 64 << 10  # bytes of each file of a folder that its hash covers, besides name and size


def of(backend: str, requirements: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Returns {"name", "what", "version", "cuda", "files", "sha256", "problem"} of each artefact that is installed.

    `cuda`: the CUDA version that it was built with, "13.0" or "13", null if its files do not depend on one; `problem`: why
    the library cannot use it in this process, null if it can.
    """
    if not requirements or not (declared := _declared(backend)):
        return []
    library = requirements[0]
    version = optional.version_of(library.get("distribution", ""))
    found = []
    for one in declared:
        artefact = _package(one) if "distribution" in one else _folder(one, library["import"])
        if artefact is not None:
            found.append({**artefact, "what": one["what"], "problem": _problem(artefact, one, library, version)})
    return found


def identity(artefacts: list[dict[str, Any]]) -> str:
    """Returns a short name of a set of artefacts for versions of kernels, "" for none: the same code, the same name."""
    if not artefacts:
        return ""
    text = ",".join(f"{one['name']} {one['sha256']}" for one in artefacts)
    return f"prebuilt.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def refusal(artefacts: list[dict[str, Any]]) -> str:
    """Returns why the library cannot be used with these artefacts, or ""."""
    return "; ".join(one["problem"] for one in artefacts if one["problem"])


@functools.cache
def _declared(backend: str) -> tuple[dict[str, str], ...]:
    path = FOLDER / backend / "prebuilt.json"
    return tuple(json.loads(path.read_text())) if path.is_file() else ()


def _package(one: dict[str, str]) -> dict[str, Any] | None:
    version = optional.version_of(one["distribution"])
    if version is None or importlib.util.find_spec(one["import"]) is None:
        return None
    from importlib import metadata

    distribution = metadata.distribution(one["distribution"])
    record = distribution.read_text("RECORD") or version  # it has the hash of every file
    local = re.search(r"\+.*?cu(\d+)", version)
    cuda = f"{local.group(1)[:-1]}.{local.group(1)[-1]}" if local else None
    return {
        "name": one["distribution"],
        "version": version,
        "cuda": cuda
        or _linked(Path(str(file.locate())) for file in distribution.files or [] if ".so" in file.suffixes),
        "files": record.count("\n"),
        "sha256": hashlib.sha256(record.encode()).hexdigest(),
    }


def _folder(one: dict[str, str], module: str) -> dict[str, Any] | None:
    if "variable" in one:
        path = Path(os.environ[one["variable"]]) if os.environ.get(one["variable"]) else None
    else:
        spec = importlib.util.find_spec(module.partition(".")[0])
        places = spec.submodule_search_locations if spec is not None else None
        path = Path(places[0], one["folder"]) if places else None
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path is not None and path.is_dir() else []
    if path is None or not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path)} {file.stat().st_size} ".encode())
        with file.open("rb") as content:
            digest.update(content.read(HEAD))
    return {
        "name": str(path),
        "version": None,
        "cuda": _linked(file for file in files if file.suffix == ".so"),
        "files": len(files),
        "sha256": digest.hexdigest(),
    }


def _linked(files: Any) -> str | None:
    """Returns the major version of CUDA that the first file with one links."""
    for file in files:
        for name in shared_objects.libraries_of(file):
            if (match := runtime.RUNTIMES.match(name)) and match.group(1) != "amdhip64":
                return match.group(2)
    return None


def _problem(artefact: dict[str, Any], one: dict[str, str], library: dict[str, str], version: str | None) -> str | None:
    name, own = artefact["name"], artefact["version"]
    if own and version and optional.release_numbers(own) != optional.release_numbers(version):
        wanted = library.get("distribution", library["import"])
        return f"{name} {own} is of another release than {wanted} {version}: install {one['distribution']}=={version}"
    here = runtime.of_process()
    if (
        artefact["cuda"]
        and here is not None
        and (here.name, here.major) != ("CUDA", int(artefact["cuda"].partition(".")[0]))
    ):
        return f"{name} is built with CUDA {artefact['cuda']}, and this process uses {here} ({here.origin}): install its build for {here}"
    return None
