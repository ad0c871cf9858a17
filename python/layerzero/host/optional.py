"""Optional Python packages, not needed by `import layerzero`: tested versions and commands to install them.

pyproject.toml's extras have the same ranges; tests/python/test_optional.py compares the two.
"""

import contextlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from layerzero.errors import NotInstalledError


class Package(NamedTuple):
    """A package's tested versions and its purpose."""

    tested: str  # ">=a,<b"; compared part by part
    extra: str | None  # of layerzero-kernels
    purpose: str


PACKAGES = {
    "torch": Package(">=2.11,<3", "torch", "every operation"),
    "numpy": Package(">=1.26,<3", None, "arrays as arguments; without it torch prints a warning"),
    "transformers": Package(">=5.17,<5.25", "transformers", "kernelize, generate, demo, bench models"),
    "accelerate": Package(">=1.10,<2", "transformers", "reading .gguf files with Transformers"),
    "gguf": Package(">=0.17,<1", "transformers", "reading .gguf files, weights='gguf'"),
    "kernels": Package(">=0.17,<0.19", "hub", "kernels of the Hub, integrations.hf_kernels"),
    "apache-tvm-ffi": Package(">=0.1.9,<0.2", None, "compiled modules, integrations.ffi_kernels"),
    "prometheus_client": Package(">=0.20,<1", "metrics", "lz.serve_metrics, metrics.listen, layerzero top"),
    "opentelemetry-api": Package(">=1.20,<2", "trace", "lz.trace, trace.opentelemetry"),
    "diffusers": Package(">=0.42,<0.43", "diffusers", "kernelize of diffusers' pipelines, integrations.diffusers"),
    "tokenizers": Package(">=0.23,<0.24", "tokenizers", "tokenizer.json files, lz.tokenize"),
    "tiktoken": Package(">=0.14,<0.15", "tokenizers", "tiktoken's encodings, lz.tokenize"),
    "sentencepiece": Package(">=0.2.3,<0.3", "tokenizers", "SentencePiece models, lz.tokenize"),
    "vllm": Package(">=0.25,<0.26", "vllm", "the plugin of vLLM, integrations.vllm"),
    "sglang": Package(">=0.5.15,<0.6", "sglang", "the plugin of SGLang, integrations.sglang"),
}
_MODULES = {"opentelemetry-api": "opentelemetry", "apache-tvm-ffi": "tvm_ffi"}  # packages whose module has another name


def _installed(name: str) -> bool:
    return importlib.util.find_spec(_MODULES.get(name, name)) is not None


def need(*names: str, what: str) -> None:
    """Raises NotInstalledError for missing packages, with one command that installs all that `what` needs."""
    missing = [name for name in names if not _installed(name)]
    if missing:
        raise not_installed(missing, what)


def not_installed(missing: list[str], what: str) -> NotInstalledError:
    """Returns the error that names the missing packages and the command."""
    plural = "packages that are" if len(missing) > 1 else "a package that is"
    fix = install_command(*missing)
    wanted = " and ".join(missing)
    return NotInstalledError(what, wanted, "none", fix, message=f"{what} needs {wanted}, {plural} not installed; {fix}")


def as_not_installed(error: ImportError, what: str) -> NotInstalledError | None:
    """Converts a failed import of an optional package into an error that says what to install; None if another module
    is at fault."""
    root = (error.name or "").partition(".")[0]
    root = next((name for name, module in _MODULES.items() if module == root), root)
    if root not in PACKAGES:
        return None
    if not _installed(root):
        return not_installed([root], what)
    version = version_of(root)
    if version is None or meets(version, PACKAGES[root].tested):
        return None
    fix = install_command(root)
    got = f"{version}, which lacks what is used ({error})"
    return NotInstalledError(what, f"{root}{PACKAGES[root].tested}", got, fix)


@contextlib.contextmanager
def needed_for(what: str) -> Iterator[None]:
    """While inside, a failed import of an optional package is an error that says what to install."""
    try:
        yield
    except ImportError as error:
        if found := as_not_installed(error, what):
            raise found from None
        raise


def install_command(*names: str) -> str:
    """Returns the pip command that installs packages in tested versions, by the extra that contains all of them if
    there is one."""
    extras = {PACKAGES[name].extra for name in names}
    if len(extras) == 1 and None not in extras:
        return f'pip install "layerzero-kernels[{extras.pop()}]"'
    return "pip install " + " ".join(f'"{name}{PACKAGES[name].tested}"' for name in names)


def version_of(name: str) -> str | None:
    """Returns the installed version without importing the package, or None if it is not installed."""
    from importlib import metadata  # `import layerzero` asks for no version

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def meets(version: str, wanted: str) -> bool:
    """True if a version meets ">=a,<b" by its release numbers."""
    here = release_numbers(version)
    for part in wanted.split(","):
        sign, text = re.match(r"\s*([<>=!~]+)\s*(.*?)\s*$", part).groups()  # type: ignore[union-attr]
        there = release_numbers(text.removesuffix(".*"))
        same = here[: len(there)] == there if text.endswith(".*") else here == there
        tests = {
            "==": same,
            "!=": not same,
            ">=": here >= there,
            "<=": here <= there,
            ">": here > there,
            "<": here < there,
            "~=": here >= there and here[: len(there) - 1] == there[:-1],
        }
        if not tests.get(sign, True):
            return False
    return True


def release_numbers(version: str) -> tuple[int, ...]:
    """Returns the release numbers of a version: "2.11.0+cu130" is (2, 11, 0)."""
    numbers = []
    for part in version.split("+")[0].split("."):
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def report() -> list[dict[str, Any]]:
    """Returns {"name", "version" or None, "tested", "in_range", "purpose", "fix" or None} of each package."""
    found = []
    for name, package in PACKAGES.items():
        version = version_of(name)
        fits = version is not None and meets(version, package.tested)
        entry = {"name": name, "version": version, "tested": package.tested, "in_range": fits}
        found.append({**entry, "purpose": package.purpose, "fix": None if fits else install_command(name)})
    return found
