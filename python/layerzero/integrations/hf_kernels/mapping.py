"""LayerZero's layers in the mapping of the library `kernels`, and in Transformers' KernelConfig."""

import contextlib
import importlib.util
import json
import re
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerzero.errors import InvalidRequestError, LayerZeroCompatibilityWarning
from layerzero.host import optional

if TYPE_CHECKING:
    from torch import nn

LAYERS = (
    "RMSNorm",
    "RMSNormZeroCentered",
    "SiluAndMul",
    "GeluAndMul",
    "GeluTanhAndMul",
    "SiLU",
    "GeLU",
    "GeluTanh",
    "NewGELU",
    "FastGELU",
    "QuickGELU",
    "rotary_pos_emb",
)
DEVICES = ("cpu", "cuda")
_LOCAL = "from layerzero.integrations.hf_kernels import layers\n"


@dataclass(frozen=True)
class OwnLayer:
    """A layer of this process' LayerZero, where `kernels` wants a repository: nothing is fetched."""

    layer_name: str

    def load(self) -> "type[nn.Module]":
        from layerzero.integrations.hf_kernels import layers

        layer: type[nn.Module] = getattr(layers, self.layer_name)
        return layer

    def __str__(self) -> str:
        return f"LayerZero, layer `{self.layer_name}`"


def mapping(names: Iterable[str] | None = None, devices: Collection[str] = DEVICES) -> dict[str, Any]:
    """Returns what `register_kernel_mapping` and `use_kernel_mapping` of `kernels` take: LayerZero's layers by name, for all modes.

    names: of LAYERS; None: all. devices: of "cpu" and "cuda". Each call of a layer selects its kernel as any other call does, by the
    policy, health and measured times. Gradients and torch.compile work. LayerZeroCompatibilityWarning: the installed Transformers
    does not accept the installed `kernels`, and would replace nothing.
    """
    optional.need("kernels", what="layerzero.integrations.hf_kernels.mapping()")
    warn_if_transformers_refuses("mapping()", "call kernelize() of kernels yourself")
    library: Any = importlib.import_module("kernels")
    wanted = _checked(LAYERS if names is None else names, LAYERS, "names")
    places = _checked(devices, DEVICES, "devices")
    every = library.Mode.TRAINING | library.Mode.TORCH_COMPILE  # a layer of this mode serves inference too
    return {name: {device: {every: OwnLayer(name)} for device in places} for name in wanted}


def wanted_by_transformers() -> str | None:
    """Returns the versions of `kernels` that the installed Transformers accepts, as ">=a,<b", from its files: it is not imported."""
    found = None
    with contextlib.suppress(ValueError, OSError):  # a module without a spec, or without the file
        spec = importlib.util.find_spec("transformers")
        if spec is not None and spec.origin is not None:
            table = (Path(spec.origin).parent / "dependency_versions_table.py").read_text(encoding="utf-8")
            found = re.search(r'"kernels": "kernels([^"]+)"', table)
    return found and found[1]


def warn_if_transformers_refuses(what: str, instead: str) -> None:
    wanted, installed = wanted_by_transformers(), optional.version_of("kernels")
    if wanted is None or installed is None or optional.meets(installed, wanted):
        return
    transformers = f"Transformers {optional.version_of('transformers') or 'of an unknown version'}"
    warnings.warn(
        f"{what}: wanted kernels{wanted}, which is what {transformers} accepts, got kernels {installed}, with which "
        f'model.set_use_kernels(True) and KernelConfig replace nothing; pip install "kernels{wanted}", or {instead}',
        LayerZeroCompatibilityWarning,
        stacklevel=3,
    )


def _checked(given: Iterable[str], known: Collection[str], field: str) -> list[str]:
    found = list(given)
    unknown = [one for one in found if one not in known]
    if unknown or not found:
        raise InvalidRequestError(field, f"some of {', '.join(known)}", repr(found), f"leave {field} out for all")
    return found


def write_local_kernel(folder: str | Path, devices: Collection[str] = DEVICES) -> Path:
    """Writes a kernel in the build layout whose layers are those of this process' LayerZero, for what takes folders alone
    (`LocalLayerRepository`, `KernelConfig(use_local_kernel=True)`); returns the folder. It has no binaries: `scripts/hub_kernel.py`
    of the repository makes one that can be published."""
    folder = Path(folder).resolve()
    for device in _checked(devices, DEVICES, "devices"):
        variant = folder / "build" / f"torch-{device}"
        variant.mkdir(parents=True, exist_ok=True)
        (variant / "__init__.py").write_text(_LOCAL)
        about = {"id": f"_layerzero_{device}_local", "name": "layerzero", "version": 1, "license": "Apache-2.0"}
        about |= {"python-depends": [], "backend": {"type": device}}
        (variant / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")
    return folder


def kernel_config(folder: str | Path, names: Iterable[str] = ("RMSNorm",), device: str = "cuda") -> Any:
    """Returns a KernelConfig of Transformers for `from_pretrained(..., kernel_config=...)`: LayerZero's layers by way of a folder, which
    write_local_kernel() makes. Transformers' KernelConfig knows no CPU: InvalidRequestError, and register mapping() instead."""
    optional.need("kernels", "transformers", what="layerzero.integrations.hf_kernels.kernel_config()")
    warn_if_transformers_refuses("kernel_config()", "register mapping() and call kernelize() of kernels")
    from transformers import KernelConfig
    from transformers.utils.kernel_config import KERNELS_SUPPORTED_DEVICE_TYPES

    if device not in KERNELS_SUPPORTED_DEVICE_TYPES:
        known = f"a device of Transformers' KernelConfig: {', '.join(KERNELS_SUPPORTED_DEVICE_TYPES)}"
        raise InvalidRequestError("device", known, repr(device), "call register_kernel_mapping(mapping()) of kernels")
    written = write_local_kernel(folder, [device])
    chosen = _checked(names, LAYERS, "names")
    return KernelConfig({name: {device: f"{written}:{name}"} for name in chosen}, use_local_kernel=True)
