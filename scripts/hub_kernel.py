"""Lays out LayerZero's CPU kernels as a kernel of the Hugging Face Hub, and has it checked.

    python scripts/hub_kernel.py OUT --wheel dist/layerzero_kernels-...manylinux_2_28_x86_64.whl
    python scripts/hub_kernel.py OUT --libraries build/release/lib        # of this machine's compiler: the check of manylinux fails

OUT/build/torch-stable-abi211-cpu-x86_64-linux holds the two libraries (torch's stable ABI, no Python symbol), the layers of
layerzero.integrations.hf_kernels over them, and metadata.json. The check is that of the package kernel-abi-check: ABI3 and manylinux_2_28.
Exit code 1, with each symbol that is not allowed, where it fails; 2 where the package is missing. --no-check leaves it out.
"""

import argparse
import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIANT = "torch-stable-abi211-cpu-x86_64-linux"
LIBRARIES = ("liblayerzero.so", "liblayerzero_torch.so")
MANYLINUX, PYTHON_ABI = "manylinux_2_28", "3.10"
INIT = '''"""LayerZero's CPU kernels: functions, and layers for the mapping of the library `kernels`."""

from . import layers
from .operations import activation, gated_activation, rms_norm, rope, silu_and_mul

__all__ = ["activation", "gated_activation", "layers", "rms_norm", "rope", "silu_and_mul"]
'''
OPERATIONS = '''"""The operators of the library next to this file; of an imported LayerZero, if there is one: their names are the same."""

import ctypes
from pathlib import Path

import torch


def _registered():
    if hasattr(torch.ops.layerzero, "rms_norm"):
        return torch.ops.layerzero
    start = ctypes.CDLL(str(Path(__file__).parent / "liblayerzero_torch.so")).layerzero_torch_register
    start.restype = ctypes.c_char_p
    if problem := start():
        raise ImportError(problem.decode())
    return torch.ops.layerzero


_ops = _registered()


def rms_norm(input, weight=None, eps=1e-6, *, weight_offset=0.0):
    return _ops.rms_norm(input, weight, eps, weight_offset=weight_offset)


def silu_and_mul(input):
    return _ops.silu_and_mul(input)


def gated_activation(input, *, activation="silu"):
    return _ops.gated_activation(input, activation=activation)


def activation(input, function):
    return _ops.activation(input, function)


def rope(input, cos, sin, *, layout="BSHD"):
    return _ops.rope(input, cos, sin, layout=layout)
'''


def layers() -> str:
    """The package's layers, without what needs its Python side: gradients and tracing."""
    text = (ROOT / "python/layerzero/integrations/hf_kernels/layers.py").read_text()
    for flag in ("can_torch_compile", "has_backward"):
        if f"{flag} = True" not in text:
            raise SystemExit(f"hub_kernel.py: layers.py has no {flag}")
        text = text.replace(f"{flag} = True", f"{flag} = False")
    return text


def lay_out(out: Path, libraries: Path | None, wheel: Path | None) -> Path:
    """Writes the kernel below `out`, with the libraries of a folder or of a wheel; returns the variant's folder."""
    variant = out / "build" / VARIANT
    if variant.exists():
        shutil.rmtree(variant)
    variant.mkdir(parents=True)
    if wheel is not None:
        with zipfile.ZipFile(wheel) as packed:
            for name in LIBRARIES:
                (variant / name).write_bytes(packed.read(f"layerzero/{name}"))
    else:
        for name in LIBRARIES:
            shutil.copyfile(Path(str(libraries)) / name, variant / name)
    (variant / "__init__.py").write_text(INIT)
    (variant / "operations.py").write_text(OPERATIONS)
    (variant / "layers.py").write_text(layers())
    build = hashlib.sha256(b"".join((variant / name).read_bytes() for name in LIBRARIES)).hexdigest()[:12]
    about = {"id": f"_layerzero_cpu_{build}", "name": "layerzero", "version": 1}
    about |= {"license": "Apache-2.0", "python-depends": [], "backend": {"type": "cpu"}}
    (variant / "metadata.json").write_text(json.dumps(about, indent=1) + "\n")
    return variant


def problems(library: Path) -> list[str]:
    """What kernel-abi-check finds in a library, as lines."""
    from kernel_abi_check import ObjectFile

    checked = ObjectFile(str(library))
    found = [
        f"{library.name}: {one.name} is of {one.dep} {one.version}, later than {MANYLINUX}"
        for one in checked.check_manylinux(MANYLINUX)
    ]
    for one in checked.check_python_abi(PYTHON_ABI):
        found.append(f"{library.name}: {one.name} is not of Python's stable ABI {PYTHON_ABI}")
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--libraries", type=Path, help="a folder with both libraries")
    given.add_argument("--wheel", type=Path, help="a wheel of LayerZero, the portable one to publish")
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    variant = lay_out(options.out, options.libraries, options.wheel)
    print(variant)
    if options.no_check:
        return 0
    try:
        found = [line for name in LIBRARIES for line in problems(variant / name)]
    except ModuleNotFoundError:
        print(
            "hub_kernel.py: not checked, kernel-abi-check is not installed: pip install kernel-abi-check",
            file=sys.stderr,
        )
        return 2
    for line in found:
        print(line, file=sys.stderr)
    print(f"kernel-abi-check: {len(found)} symbols that {MANYLINUX} or ABI3 do not allow")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
