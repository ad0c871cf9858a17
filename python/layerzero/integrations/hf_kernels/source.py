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
    if optional.version_of("kernels") is None:
        raise optional.not_installed(["kernels"], "hub_kernel()")
    origin, module = _load(kernel_id, facts, folder, digest, repository, lockfile)

    def decorate(function: F) -> F:
        plain = functools.partial(function, module)
        plain.__name__ = function.__name__  # type: ignore[attr-defined]
        plain.__signature__ = _without_first(function)  # type: ignore[attr-defined]
        _register(operation, kernel_id, plain, origin, supported_dtypes, facts)
        return function

    return decorate


def _load(
    kernel_id: str,
    facts: dict[str, Any],
    folder: str | Path | None = None,
    digest: str | None = None,
    repository: str | None = None,
    lockfile: str | Path | None = None,
) -> tuple[Origin, Any]:
    """(where a kernel comes from, its module), after the checks that hub_kernel() names."""
    if (folder is None) == (repository is None):
        raise InvalidRequestError("folder, repository", "one of the two", f"{folder!r} and {repository!r}", "name one")
    source = str(facts.get("source") or kernel_id.split(".")[0])
    origin = _of_folder(Path(folder), digest) if folder is not None else _of_cache(str(repository), lockfile, digest)
    if origin.locked_by is None:
        _require_consent(kernel_id, source, origin)
    with offline():
        library: Any = importlib.import_module("kernels")
        if folder is not None:
            return origin, library.get_local_kernel(Path(folder))
        return origin, library.load_kernel(str(repository), lockfile=Path(str(lockfile)))


def _register(
    operation: str,
    kernel_id: str,
    function: Callable[..., Any],
    origin: Origin,
    supported_dtypes: Collection[Any],
    facts: dict[str, Any],
) -> None:
    notes = [*(facts.get("notes") or []), _note(origin)]
    given = {"version": origin.digest[:16], **facts, "notes": notes, "plugin_origin": "hub"}
    register_kernel(operation, kernel_id, supported_dtypes=supported_dtypes, **given)(function)


def run_layer(layer: type, *inputs: Any, **attributes: Any) -> Any:
    """Calls the forward of a kernel's layer (`kernel.layers.RMSNorm`), which reads its state from the module that it
    replaces: `attributes` are that state, weight and variance_epsilon for example."""
    return layer.forward(SimpleNamespace(**attributes), *inputs)  # type: ignore[attr-defined]


class _Mapped(NamedTuple):
    """How a layer of a mapping computes an operation: of what the layer reads, and what it is called with."""

    operation: str
    run: Callable[[Any], Callable[..., Any]]


def _norm(offset: float) -> Callable[[Any], Callable[..., Any]]:
    def of(layer: Any) -> Callable[..., Any]:
        def norm(input: Any, weight: Any, eps: float, weight_offset: float) -> Any:
            if weight_offset != offset:
                raise KernelRefusedError(f"{layer.__name__} adds {offset:g} to the weight, not {weight_offset:g}")
            if weight is None:
                raise KernelRefusedError(f"{layer.__name__} multiplies by a weight")
            return run_layer(layer, input, weight=weight, variance_epsilon=eps, eps=eps)

        return norm

    return of


def _rows(layer: Any) -> Callable[..., Any]:
    def rows(input: Any) -> Any:
        return run_layer(layer, input)

    return rows


MAPPED = {
    "RMSNorm": _Mapped("norm.rms", _norm(0.0)),
    "RMSNormZeroCentered": _Mapped("norm.rms", _norm(1.0)),
    "SiluAndMul": _Mapped("activation.silu_and_mul", _rows),
}
MODES = ("inference", "training", "inference+compile", "training+compile")


def mapped_layer(
    layer_name: str,
    kernel_id: str,
    *,
    supported_dtypes: Collection[Any],
    device: str = "cpu",
    mode: str = "inference",
    digest: str | None = None,
    **facts: Any,
) -> None:
    """Registers the layer that the mapping of `kernels` has for a name, a device and a mode as a kernel of its operation.

        register_kernel_mapping({"RMSNorm": {"cuda": LockedLayerRepository("ours/norms", layer_name="RMSNorm", lockfile=...)}})
        mapped_layer("RMSNorm", "ours.rms_norm", device="cuda", supported_dtypes=["float16"])

    layer_name: of MAPPED. mode: of MODES, chosen among the mapping's modes by the rules of `kernels`; "training" wants a layer with a
    backward, "+compile" one that torch can trace. Of the repositories, folders (LocalLayerRepository, pinned by `digest`) and locked ones
    (LockedLayerRepository, by their lockfile) are served, with the checks and errors of hub_kernel(), which has the other arguments.
    """
    how = _one_of("layer_name", layer_name, MAPPED)
    _one_of("mode", mode, dict.fromkeys(MODES))
    if optional.version_of("kernels") is None:
        raise optional.not_installed(["kernels"], "mapped_layer()")
    repository = _repository(layer_name, device, mode)
    place = {name: getattr(repository, f"_{name}", None) for name in ("repo_path", "repo_id", "lockfile")}
    pinned: dict[str, Any] = {"folder": place["repo_path"], "digest": digest}
    if place["repo_path"] is None:
        if place["lockfile"] is None:
            wanted = "a LocalLayerRepository, or a LockedLayerRepository with its lockfile"
            raise InvalidRequestError("mapping", wanted, type(repository).__name__, "kernels lock <project>")
        pinned = {"repository": place["repo_id"], "lockfile": place["lockfile"], "digest": digest}
    origin, module = _load(kernel_id, facts, **pinned)
    layer = getattr(getattr(module, "layers", None), repository.layer_name, None)
    if layer is None:
        raise KernelRefusedError(f"{kernel_id}: {origin.repository} has no layer {repository.layer_name}")
    _require_mode(kernel_id, layer, mode)
    given = {"requires_contiguous": True, **facts}
    if device == "cuda":
        given = {"platform": "cuda", **given}
    _register(how.operation, kernel_id, how.run(layer), origin, supported_dtypes, given)


def _one_of(field: str, name: str, known: dict[str, Any]) -> Any:
    if name not in known:
        raise InvalidRequestError(field, f"one of {', '.join(known)}", repr(name), "name one of them")
    return known[name]


def _repository(layer_name: str, device: str, mode: str) -> Any:
    """The repository that kernelize() of `kernels` would take."""
    from kernels.layer.globals import _KERNEL_MAPPING
    from kernels.layer.repos import _select_repository

    library: Any = importlib.import_module("kernels")
    wanted = library.Mode.TRAINING if mode.startswith("training") else library.Mode.INFERENCE
    if mode.endswith("+compile"):
        wanted |= library.Mode.TORCH_COMPILE
    of_device = _KERNEL_MAPPING.get().get(layer_name, {}).get(device)
    by_mode = of_device.repos if of_device is not None else None
    found = _select_repository(by_mode, mode=wanted) if by_mode else None
    if found is None:
        has = f"a repository for {layer_name} on {device} in mode {mode}"
        raise InvalidRequestError("mapping", has, "none", "register_kernel_mapping() of kernels")
    return found[0]


def _require_mode(kernel_id: str, layer: Any, mode: str) -> None:
    if mode.startswith("training") and not getattr(layer, "has_backward", True):
        raise KernelRefusedError(f"{kernel_id}: {layer.__name__} has no backward, which mode {mode!r} wants")
    if mode.endswith("+compile") and not getattr(layer, "can_torch_compile", False):
        raise KernelRefusedError(f"{kernel_id}: torch cannot trace {layer.__name__}, which mode {mode!r} wants")


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
    warnings.warn(f"{kernel_id}: {origin.repository} is not pinned; allow_sources names {source}", stacklevel=4)


def _note(origin: Origin) -> str:
    return "Hub kernel: " + json.dumps(origin._asdict())


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
