"""Which builds of libraries run together in this process: tested, expected or refused, each with its reason.

A process holds one major version of CUDA or ROCm, torch's: a library that links another one is refused before its import.
`tested.json` in a backend's folder lists the combinations in which its kernels passed the conformance cases on a device.
"""

import functools
import importlib.util
import json
import re
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from layerzero.backends import matrix, prebuilt, runtime, shared_objects
from layerzero.backends.runtime import Runtime
from layerzero.errors import ConfigError, LayerZeroCompatibilityWarning
from layerzero.host import optional
from layerzero.host.policy import policy_in_force

FOLDER = Path(__file__).parent
OWN = {"layerzero.cpu": frozenset[int](), "layerzero.cuda": frozenset({90})}  # GPUs on which own kernels passed
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)\s*\(?([<>=!~][^;)]*)\)?\s*(;.*)?$")


@functools.lru_cache(maxsize=256)
def files_of(module: str, distribution: str = "") -> tuple[Path, ...]:
    """Returns a library's shared objects: those below its package, and those that its distribution puts next to it."""
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return ()
    if spec is None:
        return ()
    places = list(spec.submodule_search_locations or [])
    found = [path for place in places for path in shared_objects.of_package(Path(place))]
    if not places and spec.origin:
        found = shared_objects.of_package(Path(spec.origin))
    try:
        files = (metadata.files(distribution) if distribution else None) or []
    except metadata.PackageNotFoundError:
        files = []
    modules = [Path(str(file.locate())) for file in files if len(file.parts) == 1 and ".so" in file.suffixes]
    return tuple(dict.fromkeys([*found, *(path for path in modules if path.is_file())]))


@functools.lru_cache(maxsize=256)
def links(module: str, distribution: str = "") -> frozenset[tuple[str, int]]:
    """Returns the runtimes, ("CUDA", 13), that a library's shared objects link."""
    found = set()
    for path in files_of(module, distribution):
        for name in shared_objects.libraries_of(path):
            if match := runtime.RUNTIMES.match(name):
                found.add(runtime.of_library(match.group(1), match.group(2)))
    return frozenset(found)


def links_of(requirements: list[dict[str, str]]) -> frozenset[tuple[str, int]]:
    """Returns links() of the library of a descriptor, its first requirement."""
    return links(requirements[0]["import"], requirements[0].get("distribution", "")) if requirements else frozenset()


def refusal(requirements: list[dict[str, str]]) -> str:
    """Returns why the library of a descriptor, its first requirement, cannot share this process; "" if it can.

    Reads files alone. A library that links no runtime by its version, or has a build for this process's, is not refused.
    """
    if not requirements:
        return ""
    library, built = requirements[0], links_of(requirements)
    here = runtime.of_process() if built else None
    if here is None or (here.name, here.major) in built:
        return ""
    name = library.get("distribution") or library["import"]
    version = optional.version_of(library.get("distribution", "")) if library.get("distribution") else None
    others = " and ".join(f"{kind} {major}" for kind, major in sorted(built))
    return (
        f"{name}{' ' + version if version else ''} is built for {others}, and this process uses {here} ({here.origin}): "
        f"a process holds one; install its build for {here}, or torch for {others}"
    )


def codes(requirements: list[dict[str, str]]) -> list[tuple[str, int]]:
    """Returns the CUDA code in the library of a descriptor, see shared_objects.cuda_code(); [] if it compiles its own."""
    if not requirements:
        return []
    files = files_of(requirements[0]["import"], requirements[0].get("distribution", ""))
    return sorted(frozenset().union(*map(shared_objects.cuda_code, files)))


def misfits(requirements: list[dict[str, str]], devices: dict[str, Any]) -> list[str]:
    """Returns what speaks against the library of a descriptor on the GPUs of this machine, from `_layerzero.devices()`:
    no code for one, or a driver that is older than its CUDA."""
    here = Here.of(devices)
    if not here.sms:
        return []
    found = []
    majors = [major for kind, major in links_of(requirements) if kind == "CUDA"]
    if majors and here.driver is not None and min(majors) > here.driver // 1000:
        has = f"{here.driver // 1000}.{here.driver % 1000 // 10}"
        found.append(f"it is built for CUDA {min(majors)}, and the driver has CUDA {has}: update the driver")
    code = codes(requirements)
    for sm in sorted(here.sms):
        if code and not any(_runs(*one, sm) for one in code):
            found.append(f"it has code for {', '.join(f'{kind}_{of}' for kind, of in code)}, and the device is sm_{sm}")
    return found


def _runs(kind: str, of: int, sm: int) -> bool:
    """True if code may run on a device: machine code within a generation, PTX on every later one."""
    return of <= sm and (kind == "compute" or of // 10 == sm // 10)


def check(backend: str, requirements: list[dict[str, str]]) -> str:
    """Returns why the library of a descriptor is not to be imported into this process, or "".

    Nothing is compared if compatibility.check_at_load is off. Without compatibility.fail_on_incompatible the reason is a
    LayerZeroCompatibilityWarning.
    """
    keys = policy_in_force()["keys"]
    why = _misfit(backend, requirements) if keys["compatibility.check_at_load"]["value"] else ""
    if why and not keys["compatibility.fail_on_incompatible"]["value"]:
        warnings.warn(f"{backend}: {why}", LayerZeroCompatibilityWarning, stacklevel=2)
        return ""
    return why


def _misfit(backend: str, requirements: list[dict[str, str]]) -> str:
    from layerzero import _layerzero

    why = refusal(requirements) or prebuilt.refusal(prebuilt.of(backend, requirements))
    if why or not (links_of(requirements) or matrix.path().exists()):
        return why
    devices = json.loads(_layerzero.devices())
    found = misfits(requirements, devices) if links_of(requirements) else []
    return "; ".join(found) or _of_matrix(backend, requirements, Here.of(devices))[1]


def _of_matrix(backend: str, requirements: list[dict[str, str]], here: "Here") -> tuple[str, str]:
    """Returns what the compatibility matrix says of a library: (how it was tested, why it is refused), one or both empty."""
    distribution = requirements[0].get("distribution", "") if requirements else ""
    try:
        row = matrix.verdict(backend, optional.version_of(distribution) if distribution else None, here)
    except ConfigError as error:  # until the file is corrected nothing is known of what it refuses
        return "", str(error)
    if row is None:
        return "", ""
    if row["result"] == matrix.PASSED:
        return f"{matrix.path().name}: {row['by']}", ""
    return "", f"{matrix.path()} says that it failed in this combination of versions: {row['by']}"


def write_matrix(found: list[dict[str, Any]]) -> Path:
    """Writes what passed and failed here (records of report.report()) into compatibility.matrix_path; returns the file."""
    from layerzero import _layerzero

    here, by = Here.of(json.loads(_layerzero.devices())), f"its probe, layerzero {_layerzero.build_id()[0]}"
    return matrix.write([row for one in found if (row := matrix.row_of(one, here, by)) is not None])


def unmet_pins(distribution: str) -> list[str]:
    """Returns what the metadata of an installed distribution asks of other installed packages and does not get:
    "declares torch==2.10.0, installed is 2.11.0". That is no proof: some wheels run with other versions than they declare."""
    found = []
    try:
        declared = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    for text in declared:
        match = _PIN.match(text)
        if match is None or match.group(3):  # with a marker: of an extra, or of another platform
            continue
        installed = optional.version_of(match.group(1))
        if installed is not None and not optional.meets(installed, match.group(2)):
            found.append(f"declares {match.group(1)}{match.group(2).strip()}, installed is {installed}")
    return found


class Here(NamedTuple):
    """What a combination is compared with: torch, its runtime, the GPUs of this machine and their driver."""

    torch: str | None
    runtime: Runtime | None
    sms: frozenset[int]
    driver: int | None  # CUDA version of the driver, 13000 is 13.0

    @classmethod
    def of(cls, devices: dict[str, Any]) -> "Here":
        """Returns it for `_layerzero.devices()`."""
        facts = [d["facts"] for d in devices["devices"] if d["platform"] == "cuda" and not d["simulated"]]
        torch = getattr(sys.modules.get("torch"), "__version__", None) or optional.version_of("torch")
        driver = min((fact["cuda_version"] for fact in facts), default=None)
        return cls(torch, runtime.of_process(), frozenset(fact["sm"] for fact in facts), driver)


@functools.cache
def tested(backend: str) -> tuple[dict[str, Any], ...]:
    """Returns the combinations in which a backend's kernels passed on a device (tested.json of its folder)."""
    path = FOLDER / backend / "tested.json"
    return tuple(json.loads(path.read_text())) if path.is_file() else ()


def _is_tested(name: str, library: dict[str, Any], here: Here) -> str:
    """Returns how this combination was tested, or ""."""
    if name in OWN:
        return "the tests of this release" if name == "layerzero.cpu" or here.sms <= OWN[name] else ""
    version = optional.release_numbers(library["version"] or "")
    torch = optional.release_numbers(here.torch or "")[:2]
    cuda = here.runtime.major if here.runtime is not None and here.runtime.name == "CUDA" else None
    folder = "torch" if name in ("torch.ref", "inductor") else name  # what they run is torch's own code
    for row in tested(folder):
        same = optional.release_numbers(row["version"]) == version and optional.release_numbers(row["torch"]) == torch
        if same and row["cuda"] == cuda and here.sms <= frozenset(row["sm"]):
            return str(row["by"])
    return ""


def state(
    name: str, library: dict[str, Any], requirements: list[dict[str, str]], devices: dict[str, Any]
) -> dict[str, Any]:
    """Returns {"state", "why", "built_for", "code", "prebuilt", "issues"} of a backend's record, see report.report().

    `state`: "absent" (not installed), "refused" (it cannot be used here), "tested" (this combination of versions and
    device passed), "expected" (nothing speaks against it). `issues`: {"severity", "backend", "reason"} each.
    """
    distribution = requirements[0].get("distribution", "") if requirements else ""
    errors = [item["detail"] for item in library["missing"]]
    artefacts = prebuilt.of(name, requirements)
    found = [refusal(requirements), prebuilt.refusal(artefacts), *misfits(requirements, devices)]
    passed, failed = _of_matrix(name, requirements, Here.of(devices)) if requirements else ("", "")
    found.append(failed)
    errors += [text for text in found if text and not any(text in error for error in errors)]
    warnings = unmet_pins(distribution) if distribution and library["version"] else []
    how = _is_tested(name, library, Here.of(devices)) or passed
    what, why = "expected", f"tested with {library['tested_with']}, not in this combination"
    if errors:
        is_absent = library["version"] is None and not library["installed"]
        what, why = "absent" if is_absent else "refused", errors[0]
    elif how:
        what, why = "tested", how
    issues = [("error", reason) for reason in errors] + [("warning", reason) for reason in warnings]
    return {
        "state": what,
        "why": why,
        "built_for": [f"{kind} {major}" for kind, major in sorted(links_of(requirements))],
        "code": [f"{kind}_{of}" for kind, of in codes(requirements)],
        "prebuilt": artefacts,
        "issues": [{"severity": severity, "backend": name, "reason": reason} for severity, reason in issues],
    }
