"""Kernels of the library `kernels` (Hugging Face) as kernels of LayerZero's operations.

A kernel comes from a local folder in the build layout (`build/<variant>/`), or from a repository that the Hub's cache
holds and a lockfile pins (`kernels lock`, `kernels download`). It is loaded when it is registered: no call imports a module
or reaches a network.
"""

import functools
import hashlib
import importlib
import inspect
import json
import warnings
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from layerzero.backends.python_kernels import register_kernel
from layerzero.errors import InvalidRequestError, KernelRefusedError
from layerzero.host import optional
from layerzero.host.offline import offline
from layerzero.host.policy import allowed_sources

F = TypeVar("F", bound=Callable[..., Any])


class Origin(NamedTuple):
    """Where a kernel comes from. `digest`: sha256 of the names and contents of its files, see digest_of()."""

    repository: str
    revision: str | None
    variant: str
    digest: str
    locked_by: str | None


def hub_kernel(
    operation: str,
    kernel_id: str,
    *,
    supported_dtypes: Collection[Any],
    folder: str | Path | None = None,
    digest: str | None = None,
    repository: str | None = None,
    lockfile: str | Path | None = None,
    **facts: Any,
) -> Callable[[F], F]:
    """Registers the decorated function as a kernel of `operation` that calls a kernel of the Hub:

        @hub_kernel("activation.silu_and_mul", "ours.silu_and_mul", folder="activation", digest="9f86...", supported_dtypes=["float16"])
        def silu_and_mul(kernel, input): ...

    The function gets the loaded module first, then the parameters of the operation that it names, as with
    `register_kernel`, which has the other arguments. `folder`: a kernel's folder, pinned by `digest` (digest_of()).
    `repository`: its name on the Hub, pinned by the commit in `lockfile`; it has to be in the cache. Raises KernelRefusedError if neither
    pins the kernel, unless the policy's `allow_sources` names its source (["ours*"]), and if its files are not those that are pinned or that its own
    metadata lists. Its notes in `list_kernels` state repository, revision, variant and digest.
    """
    if (folder is None) == (repository is None):
        raise InvalidRequestError("folder, repository", "one of the two", f"{folder!r} and {repository!r}", "name one")
    if optional.version_of("kernels") is None:
        raise optional.not_installed(["kernels"], "hub_kernel()")
    source = str(facts.get("source") or kernel_id.split(".")[0])
    origin = _of_folder(Path(folder), digest) if folder is not None else _of_cache(str(repository), lockfile, digest)
    if origin.locked_by is None:
        _require_consent(kernel_id, source, origin)
    with offline():
        library: Any = importlib.import_module("kernels")
        if folder is not None:
            module = library.get_local_kernel(Path(folder))
        else:
            module = library.load_kernel(str(repository), lockfile=Path(str(lockfile)))
    notes = [*(facts.pop("notes", None) or []), _note(origin)]

    def decorate(function: F) -> F:
        plain = functools.partial(function, module)
        plain.__name__ = function.__name__  # type: ignore[attr-defined]
        plain.__signature__ = _without_first(function)  # type: ignore[attr-defined]
        given = {"version": origin.digest[:16], **facts, "notes": notes, "plugin_origin": "hub"}
        register_kernel(operation, kernel_id, supported_dtypes=supported_dtypes, **given)(plain)
        return function

    return decorate


def run_layer(layer: type, *inputs: Any, **attributes: Any) -> Any:
    """Calls the forward of a kernel's layer (`kernel.layers.RMSNorm`), which reads its state from the module that it
    replaces: `attributes` are that state, weight and variance_epsilon for example."""
    return layer.forward(SimpleNamespace(**attributes), *inputs)  # type: ignore[attr-defined]


def digest_of(folder: str | Path) -> str:
    """Returns the sha256 of the build variant of a kernel's folder that this process would load: of the names and contents
    of its files, without what the import of Python files leaves."""
    return _digest(_variant(Path(folder)))


def _digest(variant: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(variant.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{path.relative_to(variant).as_posix()} {content}\n".encode())
    return found.hexdigest()


def _variant(folder: Path) -> Path:
    """Returns the folder of the build variant for this torch, CUDA and machine."""
    from kernels.resolver import resolve_local_kernel

    try:
        return Path(resolve_local_kernel(folder, backend=None).variant_path)
    except (OSError, ValueError) as error:
        raise KernelRefusedError(f"{folder} has no build for this process: {error}") from error


def _of_folder(folder: Path, digest: str | None) -> Origin:
    variant = _variant(folder)
    return Origin(str(folder), None, variant.name, _checked(variant, digest), "digest" if digest else None)


def _of_cache(repository: str, lockfile: str | Path | None, digest: str | None) -> Origin:
    if lockfile is None:
        raise InvalidRequestError("lockfile", "the file that `kernels lock` writes", "none", "kernels lock <project>")
    from kernels.hf_hub import _get_hf_api
    from kernels.locking import get_locked_kernel_revision
    from kernels.resolver import LockedHubCacheResolver

    try:
        locks, wanted = get_locked_kernel_revision(repository, Path(lockfile))
        resolver = LockedHubCacheResolver(kernel_locks=locks, trust_remote_code=False)
        with offline():
            variant = Path(resolver.resolve(api=_get_hf_api(), backend=None, kernel=wanted).variant_path)
    except (OSError, ValueError, LookupError) as error:
        raise KernelRefusedError(f"{repository} cannot be loaded as {lockfile} pins it: {error}") from error
    commit = str(locks[wanted].commit)
    return Origin(repository, commit, variant.name, _checked(variant, digest), f"commit in {Path(lockfile).name}")


def _checked(variant: Path, wanted: str | None) -> str:
    """Returns the digest of a variant, after comparing it with `wanted` and with what its metadata lists."""
    found = _digest(variant)
    if wanted is not None and found != wanted:
        raise KernelRefusedError(f"the digest of {variant} is not the pinned one: wanted {wanted}, got {found}")
    from kernels._rust import Digest, DigestValidationError, Metadata

    listed = Metadata.read_from_file(variant / "metadata.json").digest
    if listed is not None:
        try:
            listed.validate(Digest.hash_variant(listed.algorithm, variant))
        except DigestValidationError as error:
            raise KernelRefusedError(
                f"files of {variant} are not those that its metadata.json lists: {error}"
            ) from error
    return found


def _require_consent(kernel_id: str, source: str, origin: Origin) -> None:
    if not any(glob.strip("*") and fnmatchcase(source, glob) for glob in allowed_sources()):  # "*" names no source
        raise KernelRefusedError(
            f"{kernel_id}: {origin.repository} is not pinned, so that its code may change unnoticed: pass digest={origin.digest!r} "
            f"or a lockfile, or name it in the policy's allow_sources: ['{source}*']"
        )
    warnings.warn(f"{kernel_id}: {origin.repository} is not pinned; allow_sources names {source}", stacklevel=3)


def _note(origin: Origin) -> str:
    return "Hub kernel: " + json.dumps(origin._asdict())


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
