"""Checks whether the libraries of a descriptor are installed, without importing them."""

import functools
import importlib.util
from typing import Any

from layerzero.backends import prebuilt
from layerzero.host import optional


def availability_of(descriptor: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns {"*" or kernel id: {"installed", "code", "detail", "version"}} for Engine::RegisterBackend."""
    requirements = descriptor.get("requires", [])
    found = {"*": {"version": descriptor["backend_version"], **_state(requirements)}}
    if found["*"]["installed"] and (
        artefacts := prebuilt.identity(prebuilt.of(descriptor.get("backend", ""), requirements))
    ):
        found["*"]["version"] += f"+{artefacts}"  # times of one build say nothing about another
    templates = descriptor.get("templates", {})
    for rows in descriptor["ops"].values():
        for row in rows:
            own = row.get("requires") or templates.get(row.get("extends"), {}).get("requires")
            if own and found["*"]["installed"]:
                found[row["kernel_id"]] = _state(own)
    return found


def missing(requirements: list[dict[str, str]]) -> list[dict[str, str]]:
    """Returns {"what", "detail", "fix", "code"} of each unmet requirement; `fix` is the command that installs it."""
    found = []
    for requirement in requirements:
        why = _missing(
            requirement["import"],
            requirement.get("distribution", ""),
            requirement.get("min_version", ""),
            requirement.get("below_version", ""),
        )
        if why:
            what = requirement.get("distribution") or requirement["import"]
            fix = requirement.get("install") or _install(requirement)
            found.append({"what": what, "detail": why, "fix": fix, "code": "NOT_INSTALLED"})
    return found


def version_of(requirements: list[dict[str, str]]) -> str | None:
    """Returns the installed version of a descriptor's first requirement, the library itself."""
    distribution = requirements[0].get("distribution") if requirements else None
    return _installed(distribution) if distribution else None


_installed = functools.cache(optional.version_of)  # importlib reads the whole metadata for it


def _install(requirement: dict[str, str]) -> str:
    bounds = [
        sign + requirement[key] for key, sign in (("min_version", ">="), ("below_version", "<")) if key in requirement
    ]
    return f'pip install "{requirement.get("distribution", requirement["import"])}{",".join(bounds)}"'


def _state(requirements: list[dict[str, str]]) -> dict[str, Any]:
    for requirement in missing(requirements):
        return {"installed": False, "code": "NOT_INSTALLED", "detail": requirement["detail"]}
    version = version_of(requirements)
    return {"installed": True, "detail": ""} | ({"version": version} if version else {})


@functools.cache
def _missing(module: str, distribution: str, at_least: str, below: str) -> str:
    """Returns why a requirement is not met, or "" if it is."""
    package = f"{distribution} " if distribution else ""
    try:
        if importlib.util.find_spec(module.partition(".")[0]) is None:  # for "a.b" it would import a
            return f"module {module} is not installed"
    except (ImportError, ValueError) as error:
        return f"module {module} is not installed ({error})"
    if not at_least and not below:
        return ""
    installed = _installed(distribution)
    if installed is None:
        return f"module {module} is installed without the metadata of {distribution}: its version is unknown"
    if at_least and optional.release_numbers(installed) < optional.release_numbers(at_least):
        return f"{package}{installed} is older than {at_least}"
    if below and optional.release_numbers(installed) >= optional.release_numbers(below):
        return f"{package}{installed} is not older than {below}"
    return ""
