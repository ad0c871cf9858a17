"""A name for this kind of machine, for files of results: CPU model and number of cores, as in amd-epyc-9b45-2c."""

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    name = found.group(1) if found else platform.machine()
    name = re.sub(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", " ", name, flags=re.IGNORECASE)
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{slug}-{len(os.sched_getaffinity(0))}c"


if __name__ == "__main__":
    print(machine())
