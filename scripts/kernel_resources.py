"""Prints registers, stack and shared memory of each kernel in a built liblayerzero_cuda.so, largest stack first.

    scripts/kernel_resources.py [--json] [library]

The numbers are those of cuobjdump --dump-resource-usage, which a CUDA toolkit has, and the wheel of triton
(triton/backends/nvidia/bin); $CUOBJDUMP names another one. `stack` is the bytes of a thread's stack: spilled registers,
and arrays that are indexed at run time. Shared memory that a launch asks for is not in the library, so not in `shared`.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_LINE = re.compile(
    r"^arch = (?P<arch>\w+)$|^\s*Function (?P<name>\S+?):?$|^\s*REG:(?P<registers>\d+) STACK:(?P<stack>\d+) "
    r"SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)",
    re.MULTILINE,
)


class Kernel(NamedTuple):
    arch: str
    registers: int
    stack: int
    shared: int
    local: int
    name: str


def parse(text: str) -> list[Kernel]:
    """Returns the kernels of cuobjdump's text, with mangled names."""
    found, arch, name = [], "", ""
    for line in _LINE.finditer(text):
        arch, name = line["arch"] or arch, line["name"] or name
        if line["registers"]:
            registers, stack, shared, local = (int(line[key]) for key in ("registers", "stack", "shared", "local"))
            found.append(Kernel(arch, registers, stack, shared, local, name))
    if len(found) != text.count("Function "):
        raise ValueError(f"wanted the resources of {text.count('Function ')} functions, got {len(found)}")
    return found


def without_parameters(name: str) -> str:
    """Returns `f<T>` of a demangled `void f<T>(...)`."""
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if name[place] == "(" and depth == 0:
            return name[:place].removeprefix("void ")
    return name


def demangled(kernels: list[Kernel]) -> list[Kernel]:
    names = "\n".join(kernel.name for kernel in kernels)
    text = subprocess.run(["c++filt"], input=names, text=True, capture_output=True, check=True).stdout
    pairs = zip(kernels, text.splitlines(), strict=True)
    return [kernel._replace(name=without_parameters(name)) for kernel, name in pairs]


def cuobjdump() -> str:
    triton = importlib.util.find_spec("triton")
    inside = [str(Path(triton.origin).parent / "backends/nvidia/bin")] if triton and triton.origin else []
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin", *inside])
    tool = os.environ.get("CUOBJDUMP") or shutil.which("cuobjdump", path=path)
    if tool is None:
        sys.exit("wanted cuobjdump, got none: install a CUDA toolkit or triton, or set CUOBJDUMP to its path")
    return tool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="JSON, a kernel a line")
    parser.add_argument("library", nargs="?", type=Path, default=ROOT / "build/release/lib/liblayerzero_cuda.so")
    options = parser.parse_args()
    if not options.library.is_file():
        sys.exit(f"wanted a built library, got no file {options.library}: build with nvcc, or name the library")
    command = [cuobjdump(), "--dump-resource-usage", str(options.library)]
    text = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    kernels = sorted(demangled(parse(text)), key=lambda k: (-k.stack, -k.registers, k.arch, k.name))
    if options.json:
        print('{"kernels": [\n' + ",\n".join(json.dumps(kernel._asdict()) for kernel in kernels) + "\n]}")
        return
    for kernel in kernels:
        print(
            f"{kernel.arch:8} {kernel.registers:4} registers {kernel.stack:5} stack {kernel.shared:6} shared  {kernel.name}"
        )
    print(f"{len(kernels)} kernels, {sum(k.stack > 0 for k in kernels)} with a stack")


if __name__ == "__main__":
    main()
