"""A name for this kind of machine, for files of results: CPU model, widest instruction set, number of cores, as in
amd-epyc-avx2-2c. In a virtual machine the model alone is not enough: one name covers several generations."""

import os
import platform
import re
from pathlib import Path

# The kernel's flag, widest first, and a name like the engine's (src/platform/device.h).
INSTRUCTION_SETS = (
    ("amx_int8", "amx-int8"),
    ("amx_bf16", "amx-bf16"),
    ("avx512_fp16", "avx512-fp16"),
    ("avx512_vp2intersect", "avx512-vp2intersect"),  # distinguishes Zen 5 from Zen 4, which is equally wide
    ("avx512_bf16", "avx512-bf16"),
    ("avx512_vnni", "avx512-vnni"),
    ("avx512f", "avx512"),
    ("avx2", "avx2"),
    ("sse4_2", "sse4-2"),
    ("sve", "sve"),
    ("bf16", "neon-bf16"),
    ("asimddp", "neon-dot"),
    ("asimd", "neon"),
)


def machine_type(cpuinfo: str | None = None) -> str:
    """Returns the name without the number of cores, from the text of /proc/cpuinfo."""
    if cpuinfo is None:
        file = Path("/proc/cpuinfo")
        cpuinfo = file.read_text() if file.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    name = found.group(1) if found else platform.machine()
    name = re.sub(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", " ", name, flags=re.IGNORECASE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    known = set(flags.group(1).split()) if flags else set()
    widest = next((isa for flag, isa in INSTRUCTION_SETS if flag in known), "")
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {widest}".lower()).strip("-")


def machine() -> str:
    return f"{machine_type()}-{len(os.sched_getaffinity(0))}c"


if __name__ == "__main__":
    print(machine())
