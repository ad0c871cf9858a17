"""Calls every operation's cases with one size replaced by 0, by each kernel that admits the call.

    python zero_sizes.py LAST      # LAST: a file that holds the call in progress; prints the number of calls

A call may succeed or raise an error of LayerZero's. Other errors are listed and make the exit code 1; a fault of a kernel
ends this process, which test_zero_sizes.py runs.
"""

import re
import sys
from pathlib import Path

import layerzero as lz
import torch
from operation_cases import NAMES, arguments_of, few

_TENSOR = re.compile(r"(?P<head>\w+=\w+\[)(?P<sizes>[\d,]+)\](?P<fill>\{[^}]*\})?")


def without(line, size):
    """The call with every axis of this size made empty; values given one by one are left out."""

    def emptied(match):
        sizes = match["sizes"].split(",")
        if str(size) not in sizes:
            return match[0]
        return f"{match['head']}{','.join('0' if s == str(size) else s for s in sizes)}]"

    return _TENSOR.sub(emptied, line)


def with_one_empty_axis(line):
    """The call with one axis of one tensor made empty: mostly one that must be refused."""
    for match in _TENSOR.finditer(line):
        sizes = match["sizes"].split(",")
        for at in range(len(sizes)):
            empty = ",".join("0" if i == at else s for i, s in enumerate(sizes))
            yield f"{line[: match.start()]}{match['head']}{empty}]{line[match.end() :]}"


def variants(line):
    sizes = {s for match in _TENSOR.finditer(line) for s in match["sizes"].split(",")} - {"0"}
    return dict.fromkeys([*(without(line, s) for s in sorted(sizes)), *with_one_empty_axis(line)])


def call(name, line, faults):
    """The number of calls that the kernels of one line took; errors of another kind than LayerZero's go to `faults`."""
    try:
        arguments = arguments_of(name, line)
        kernels = [c.kernel_id for c in lz.explain(name, **arguments).candidates if c.admissible]
    except lz.LayerZeroError:
        return 1
    for kernel in kernels:
        # Tensors of their own each time: some operations write.
        given = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
        try:
            getattr(lz, name)(**given, kernel=kernel)
        except lz.LayerZeroError:
            pass
        except Exception as error:
            faults.append(f"{name}: {line}\n  {kernel}: {type(error).__name__}: {error}")
    return len(kernels)


def main():
    last, count, faults = Path(sys.argv[1]), 0, []
    for name in NAMES:
        for line, _ in few(name):
            for changed in variants(line):
                last.write_text(f"{name}: {changed}")
                count += call(name, changed, faults)
    print(count, "calls")
    print("\n".join(faults))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
