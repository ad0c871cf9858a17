"""The columns of records that say where and in which state of the machine was measured. What cannot be read is left out.

NVML is read through the package pynvml (nvidia-ml-py) if that is installed.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from layerzero import _layerzero

COLD_C, HOT_C = 50.0, 70.0
LOW, HIGH = 0.5, 0.8  # shares of the memory in use
OTHERS = 0.2  # share of this process's processors, or of a GPU, that others keep busy
LOOK_S = 0.2  # for which processors are watched
_THROTTLED = 0x08 | 0x20 | 0x40 | 0x80  # NVML: slowdown by hardware, by heat, by power


def device_columns(device: str = "cuda:0") -> dict[str, Any]:
    """Returns the columns of records that name the device: "cpu" or "cuda:N"."""
    if device == "cpu":
        return {"device_id": _layerzero.device_id("cpu")}
    major, minor = torch.cuda.get_device_capability(device)
    columns = {"device_id": _layerzero.device_id(device), "sm_version": major * 10 + minor}
    return columns | {"cuda_version": torch.version.cuda, **_driver_and_uuid(device)}


def _driver_and_uuid(device: str) -> dict[str, Any]:
    """Returns the columns by which the database keeps the runs of two drivers, and of two GPUs of one kind, apart."""
    found = next((d for d in json.loads(_layerzero.devices())["devices"] if d["name"] == device), None)
    if found is None:
        return {}
    driver = found["facts"]["driver_version"]
    return {
        "driver_version": f"{driver // 1000}.{driver % 1000}" if driver else None,
        "device_uuid": found.get("uuid") or None,
    }


def environment(device: str = "cpu") -> dict[str, Any]:
    """Returns temperature, memory_pressure, power_state and concurrent_work of the device as it is now: None where it
    cannot be read. Takes a fifth of a second; call it while this process does nothing else."""
    found = _of_cpu() if device == "cpu" else _of_gpu(int(device.partition(":")[2] or 0))
    return {key: found.get(key) for key in ("temperature", "memory_pressure", "power_state", "concurrent_work")}


def unusual(columns: dict[str, Any]) -> str:
    """Returns why times that are taken now will count as hints alone; empty: they will not."""
    said = []
    if columns.get("temperature") == "hot":
        said.append(f"above {HOT_C:g} C")
    if columns.get("power_state") == "throttled":
        said.append("throttled")
    if columns.get("memory_pressure") == "high":
        said.append(f"more than {HIGH:.0%} of its memory in use")
    if columns.get("concurrent_work"):
        said.append("at work for other processes")
    return ", ".join(said)


def _heat(celsius: float) -> str:
    return "cold" if celsius < COLD_C else "hot" if celsius > HOT_C else "warm"


def _pressure(used: float) -> str:
    return "low" if used < LOW else "high" if used > HIGH else "medium"


def _number(path: str | Path) -> float | None:
    try:
        return float(Path(path).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _temperatures() -> Iterator[float]:
    for zone in Path("/sys/class/thermal").glob("thermal_zone*"):
        with contextlib.suppress(OSError):
            kind = (zone / "type").read_text().lower()
            milli = _number(zone / "temp") if any(word in kind for word in ("cpu", "x86_pkg", "soc")) else None
            if milli is not None:
                yield milli / 1000
    for sensor in Path("/sys/class/hwmon").glob("hwmon*"):
        with contextlib.suppress(OSError):
            kind = (sensor / "name").read_text().strip()
            milli = _number(sensor / "temp1_input") if kind in ("coretemp", "k10temp", "zenpower") else None
            if milli is not None:
                yield milli / 1000


def _memory_in_use() -> float | None:
    limit, current = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    cached = 0.0
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
        cached = sum(float(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))
    if limit and current is not None:
        return max(0.0, current - cached) / limit
    try:
        words = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kib = {parts[0]: float(parts[1]) for parts in words}
        return 1 - kib["MemAvailable:"] / kib["MemTotal:"]
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _busy() -> tuple[float, float] | None:
    """Returns the seconds that the processors which this process may use were busy, and those of the process itself."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        usable = {f"cpu{n}" for n in os.sched_getaffinity(0)}
        ticks = sum(sum(map(int, r[1:4])) + sum(map(int, r[6:9])) for r in rows if r and r[0] in usable)
    except (OSError, ValueError, AttributeError):
        return None
    own = os.times()
    return ticks / os.sysconf("SC_CLK_TCK"), own.user + own.system


def _of_cpu() -> dict[str, Any]:
    found: dict[str, Any] = {}
    before, start = _busy(), time.monotonic()
    time.sleep(LOOK_S)
    after, took = _busy(), time.monotonic() - start
    if before and after:
        others = (after[0] - before[0]) - (after[1] - before[1])
        found["concurrent_work"] = others / took / max(1, _layerzero.usable_cpus()) > OTHERS
    if heat := list(_temperatures()):
        found["temperature"] = _heat(max(heat))
    if (used := _memory_in_use()) is not None:
        found["memory_pressure"] = _pressure(used)
    boost = _number("/sys/devices/system/cpu/cpufreq/boost")
    if (no_turbo := _number("/sys/devices/system/cpu/intel_pstate/no_turbo")) is not None:
        boost = 1 - no_turbo
    if boost is not None:
        found["power_state"] = "boost" if boost else "nominal"
    return found


def _of_gpu(ordinal: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.suppress(RuntimeError, AssertionError):
        free, total = torch.cuda.mem_get_info(ordinal)
        own = torch.cuda.memory_reserved(ordinal)
        found["memory_pressure"] = _pressure(max(0, total - free - own) / total)
    try:
        import pynvml
    except ImportError:
        return found
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            uuid = str(torch.cuda.get_device_properties(ordinal).uuid)
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            found["temperature"] = _heat(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            found["power_state"] = "throttled" if reasons & _THROTTLED else "nominal"
            running = {p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            found["concurrent_work"] = bool(running - {os.getpid(), os.getppid()})
        finally:
            pynvml.nvmlShutdown()
    return found
