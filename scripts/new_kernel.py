"""Writes a kernel and its test from the annotated skeleton: two new files, no edits.

  make new-kernel OP=norm.rms NAME=mine
makes kernels/norm/rms/mine.cpp, which serves norm.rms as the kernel mine.norm.rms, and tests/kernels/norm/rms/mine_test.cpp.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent
VARIANT = re.compile(r'\{\s*"([a-z0-9_]+(?:\.[a-z0-9_]+)+)"')
TENSOR = re.compile(
    r'\b(TensorParam|OptionalTensor)\(\s*"(\w+)",\s*"([^"]*)",\s*([^,]+?|Mask\([^)]*\)),\s*"', re.DOTALL
)
OUTPUT = re.compile(r'\.name = "(\w+)",\s*\.shape = "([^"]*)"')


def operations(root: Path) -> dict[str, Path]:
    """Maps operation ids to the contract that has them as a variant."""
    found: dict[str, Path] = {}
    for header in sorted((root / "ops").rglob("*.h")):
        if "common" in header.relative_to(root / "ops").parts:
            continue
        text = header.read_text()
        block = text.partition("kVariants")[2].partition(");")[0]
        found |= {operation: header for operation in VARIANT.findall(block)}
    return found


def symbol(path: str) -> str:
    """Returns the symbol that cmake/lz_tables.cmake derives from a file."""
    return re.sub(r"\W", "_", re.sub(r"\.(cpp|cu|h)$", "", path))


def fill(template: str, values: dict[str, str]) -> str:
    text = (HOME / "templates" / template).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def clang_format(text: str, name: Path, root: Path) -> str:
    """Formats the text if clang-format is installed."""
    command = ["clang-format", f"--assume-filename={name}"]
    try:
        return subprocess.run(command, input=text, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return text


def skeleton(root: Path, operation: str, name: str) -> dict[Path, str]:
    known = operations(root)
    if operation not in known:
        raise SystemExit(f"OP={operation}: no such operation; wanted one of: {', '.join(sorted(known)) or '(none)'}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name == "ref" or name.endswith("_test"):
        raise SystemExit(
            f"NAME={name}: wanted lower case letters, digits and _, as in hwy or mine; not ref, not *_test"
        )
    contract = known[operation].relative_to(root / "ops").with_suffix("").as_posix()
    text = known[operation].read_text()
    tensors = TENSOR.findall(text)
    lines = [f"//   {n} [{shape}]{', optional' if kind == 'OptionalTensor' else ''}" for kind, n, shape, _ in tensors]
    lines += [f"//   -> {n} [{shape}]" for n, shape in OUTPUT.findall(text)]
    folder = operation.replace(".", "/")
    values = {
        "OPERATION": operation,
        "NAME": name,
        "CONTRACT": contract,
        "NAMESPACE": symbol(contract),
        "REFERENCE": symbol(f"ops/{contract}.ref.cpp"),
        "SYMBOL": symbol(f"kernels/{folder}/{name}.cpp"),
        "SUITE": "".join(part.capitalize() for part in re.split(r"[._]", f"{operation}_{name}")),
        "TENSORS": "\n".join(lines),
        "DTYPES": tensors[0][3] if tensors else "kFloats",
    }
    return {
        root / f"kernels/{folder}/{name}.cpp": fill("kernel.cpp.in", values),
        root / f"tests/kernels/{folder}/{name}_test.cpp": fill("kernel_test.cpp.in", values),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operation", metavar="OP", help="an operation's id, as in norm.rms")
    parser.add_argument("name", metavar="NAME", help="the kernel's provider and variant, as in hwy")
    parser.add_argument("--root", type=Path, default=HOME.parent, help="the repository")
    args = parser.parse_args()
    files = skeleton(args.root, args.operation, args.name)
    for path in files:
        if path.exists():
            raise SystemExit(f"{path.relative_to(args.root)} exists; choose another NAME")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(clang_format(text, path, args.root))
        print(path.relative_to(args.root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
