"""What a run costs the host, and where the device waits for it: one engine's numbers, to be compared with another's.

A step whose kernels take less time than the step has a reason on the host. Each is seen by a number of its own: Python that
an engine runs more (`functions`), a processor that others use (`machine_cores`, `throttled_s`), threads of the process that
compete for the interpreter (`threads`), an interpreter or a processor that has become slow (`python_ms`), collections of
garbage, launches that come late (`gaps`: the device's idle times, by the kernels before and after).
"""

import collections
import cProfile
import gc
import os
import pstats
import threading
import time
from pathlib import Path

CLOCK = os.sysconf("SC_CLK_TCK")


def python_ms():
    """Milliseconds of a fixed loop with calls and dictionaries: the best of five, about 5 each on a fast core."""

    def once():
        kept = {}
        for index in range(20_000):
            kept[index & 255] = max(index, len(kept))
        return kept

    times = []
    for _ in range(5):
        begin = time.perf_counter()
        once()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def _threads():
    """{native id: (name, CPU seconds)} of this process's threads; those that Python did not start have the system's name."""
    own = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        used = sum(map(int, rest.split()[11:13])) / CLOCK
        found[int(task.name)] = own.get(int(task.name), name.partition("(")[2]), used
    return found


def _machine():
    """(busy CPU seconds of all cores, seconds for which a control group's limit has stopped this process)"""
    values = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
    throttled = 0.0
    for path in ("/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu/cpu.stat"):
        if Path(path).exists():
            lines = dict(line.split() for line in Path(path).read_text().splitlines())
            throttled = int(lines.get("throttled_usec", 0)) / 1e6 or int(lines.get("throttled_time", 0)) / 1e9
            break
    return (sum(values[:8]) - values[3] - values[4]) / CLOCK, throttled


class Usage:
    """A context; afterwards `found` says what the host did meanwhile."""

    def __enter__(self):
        self.found = {}
        self.collections = [one["collections"] for one in gc.get_stats()]
        self.threads, self.machine, self.begin = _threads(), _machine(), time.perf_counter()
        return self

    def __exit__(self, *_):
        wall = time.perf_counter() - self.begin
        busy, throttled = (after - before for after, before in zip(_machine(), self.machine, strict=True))
        used = {key: (name, cpu - self.threads.get(key, ("", 0.0))[1]) for key, (name, cpu) in _threads().items()}
        main = used.pop(threading.get_native_id(), ("", 0.0))[1]
        by_name = collections.Counter()
        for name, seconds in used.values():
            by_name[name] += seconds
        own = main + sum(by_name.values())
        counts = [one["collections"] - before for one, before in zip(gc.get_stats(), self.collections, strict=True)]
        self.found = {
            "wall_s": round(wall, 3),
            "main_thread_cores": round(main / wall, 2),
            "process_cores": round(own / wall, 2),
            "machine_cores": round(busy / wall, 2),
            "cores": len(os.sched_getaffinity(0)),
            "throttled_s": round(throttled, 3),
            "threads": {name: round(seconds, 2) for name, seconds in by_name.most_common(8) if seconds >= 0.01},
            "collections": counts,
            "python_threads": sorted({thread.name for thread in threading.enumerate()}),
        }


def functions(run, most=40):
    """{place: [calls, own ms, ms with what it calls]} of the functions with the largest own time while `run` runs."""
    profile = cProfile.Profile()
    profile.runcall(run)
    rows = sorted(pstats.Stats(profile).stats.items(), key=lambda row: -row[1][2])[:most]
    return {
        f"{'/'.join(Path(file).parts[-3:])}:{line} {name}": [calls, round(own * 1e3, 3), round(whole * 1e3, 3)]
        for (file, line, name), (_, calls, own, whole, _) in rows
    }


def gaps(intervals, most=20):
    """Of a device's work, (begin, end, name) in microseconds: {"busy_us", "idle_us", "between": {"A > B": [count, us]}}, the
    idle times by the pieces of work before and after them, largest first. Overlapping work is busy once."""
    busy = idle = 0.0
    between, end, last = {}, None, ""
    for begin, stop, name in sorted(intervals):
        if end is None:
            end = begin
        if begin > end:
            entry = between.setdefault(f"{last[:60]} > {name[:60]}", [0, 0.0])
            entry[0] += 1
            entry[1] += begin - end
            idle += begin - end
        busy += max(stop - max(begin, end), 0.0)
        if stop >= end:
            end, last = stop, name
    largest = sorted(between.items(), key=lambda row: -row[1][1])[:most]
    return {
        "busy_us": round(busy, 1),
        "idle_us": round(idle, 1),
        "between": {pair: [count, round(us, 1)] for pair, (count, us) in largest},
    }


def device_profile(run):
    """By torch's profiler: the 25 largest rows by host time and by device time, [count, microseconds], and the device's gaps."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        run()

    def largest(field):
        rows = sorted(found.key_averages(), key=lambda row: -getattr(row, field))[:25]
        return {row.key[:120]: [row.count, round(getattr(row, field), 1)] for row in rows}

    events = [
        e for e in found.events() if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]
    work = [(e.time_range.start, e.time_range.end, e.name) for e in events]
    return {"host": largest("self_cpu_time_total"), "device": largest("self_device_time_total"), "gaps": gaps(work)}
