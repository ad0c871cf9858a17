"""`doctor()` as text, for the command line and for a REPL."""

import json
import math
from typing import Any

from layerzero import _layerzero
from layerzero.inspection.text import table

Report = dict[str, Any]


def doctor_text(report: Report) -> str:
    """Returns devices, a summary, the usable libraries, and what would help on this machine, best first."""
    parts = [
        table(["name", "model", "facts that kernels require"], _devices(report), "Devices"),
        "\n".join(_lines_of_devices(report)),
        _summary(report),
        table(["library", "version", "kernels", "combination", "built for"], _usable(report), "Usable here"),
        table(["package", "installed", "tested", "for"], _packages(report), "Python packages"),
        *_advice(report),
    ]
    if untuned := report["untuned"]:
        rows = [[u["name"], u["call"], u["state"], u["at"]] for u in untuned]
        parts.append(
            table(["operation", "call", "why", "since"], rows, "Calls that `layerzero tune` could not measure")
        )
    if served := report["served_by_reference"]:
        rows = [[s["operation"], s["platform"], s["calls"], _cure(s["lacking"])] for s in served]
        parts.append(table(["operation", "on", "calls", "faster with"], rows, "Only their reference serves"))
    return "\n\n".join([*parts, "\n".join(_lines_of_policy(report)), _verdict(report)])


def _devices(report: Report) -> list[list[Any]]:
    return [[d["name"], d["model"], _abilities(d)] for d in report["devices"]["devices"]]


def _abilities(device: Report) -> str:
    """Returns the instruction sets of a CPU, or a GPU's architecture, cores, memory and driver."""
    facts = device["facts"]
    if device["platform"] != "cuda":
        return device["isa"]
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB"
    cuda = f"CUDA {facts['cuda_version'] // 1000}.{facts['cuda_version'] % 1000 // 10}"
    return f"sm_{facts['sm']}, {facts['num_cores']} multiprocessors, {memory}, {cuda}"


def _lines_of_devices(report: Report) -> list[str]:
    devices, threads = report["devices"], report["threads"]
    lines = []
    if devices["why_no_cuda"]:
        lines.append(f"no CUDA device: {devices['why_no_cuda']}")
        lines += [f"    {fix}"] if (fix := _fix_of_device(report)) else []
    lines.append(f"threads: {threads['usable']} of this process, {_of_torch(report)} of torch")
    lines += [f"    {threads['advice']}"] if threads["advice"] else []
    lines.append(_database(report["perfdb"]))
    return [*lines, f"simulated for --device: {', '.join(d['name'] for d in devices['simulated'])}"]


def _database(perfdb: Report) -> str:
    """Returns one line about the performance database."""
    if perfdb["sqlite"] is None:
        return (
            f"no performance database: {perfdb['why_no_sqlite']} (apt-get install libsqlite3-0); measured records are kept in "
            "prior.records.json"
        )
    rows = f"{perfdb['rows']} records" if perfdb["journal"] else "no records"
    return f"performance database: {rows} in {perfdb['path']} (SQLite {perfdb['sqlite']})"


def _of_torch(report: Report) -> Any:
    """Returns the number of torch's threads, known once it is imported."""
    return report["threads"]["torch"] or ("unknown" if report["torch"] else "none")


def _fix_of_device(report: Report) -> str | None:
    missing = (item for library in report["libraries"].values() for item in library["missing"])
    return next((item["fix"] for item in missing if item["what"] == "a CUDA device"), None)


def _summary(report: Report) -> str:
    version, usable = report["layerzero"]["version"], _usable(report)
    kernels = sum(row[2] for row in usable)
    where = ", ".join(d["model"] for d in report["devices"]["devices"])
    torch = f"torch {report['torch']}" if report["torch"] else "without torch"
    found = f"{report['counters']['measured_records']} measured records are in force"
    build = f"LayerZero {version} (build {report['layerzero']['build']}), Python {report['python']}, {torch}"
    return f"{build}:\n{kernels} kernels of {len(usable)} libraries can run on {where}; {found}."


def _usable(report: Report) -> list[list[Any]]:
    return [
        [
            n,
            (v["version"] or "yes") + ("" if v["tried"] else " (not tried)") + _where(v),
            v["kernels"],
            *_combination(v),
        ]
        for n, v in report["libraries"].items()
        if v["usable"] and v["kernels"]
    ]


def _combination(library: Report) -> list[str]:
    """Returns "tested" or "expected" and why, and what the library is built for."""
    about = library["compatibility"]
    warnings = [issue["reason"] for issue in about["issues"]]
    return [
        "; ".join([f"{about['state']}: {about['why']}", *warnings]),
        ", ".join([*about["built_for"], *about["code"]]),
    ]


def _where(library: Report) -> str:
    """Returns how the library's kernels run, if not in this process."""
    worker = library["worker"]
    if worker is None:
        return ""
    running = f"process {worker['pid']}" if worker["pid"] else "not running"
    ended = f", last ended by {worker['last_end']}" if worker["last_end"] else ""
    return f" ({worker['mode']}: {running}{ended})"


def _packages(report: Report) -> list[list[Any]]:
    rows = []
    for package in report["packages"]:
        state = package["version"] or "no"
        state += "" if package["in_range"] or not package["version"] else " (not tested)"
        rows.append([package["name"], state, package["tested"], package["purpose"]])
    return rows


def _advice(report: Report) -> list[str]:
    """Returns what would help on this machine: packages, libraries with measured gains, then other libraries by declared
    priority; in the last line libraries for other devices."""
    here = {"any", *(device["platform"] for device in report["devices"]["devices"])}
    absent = {name: library for name, library in report["libraries"].items() if not library["usable"]}
    worth = _worth(here)
    local = [name for name in absent if absent[name]["platform"] in here]
    lines = [f"{item['fix']}\n    {item['name']}, for {item['purpose']}" for item in report["packages"] if item["fix"]]
    for name in sorted(local, key=lambda name: (*_rank(absent[name]), -worth.get(name, 0))):
        gain = _gain(absent[name], worth.get(name, 0))
        lines += [f"{_command(name, item)}\n    {name}: {gain} ({item['detail']})" for item in absent[name]["missing"]]
    elsewhere = sorted(set(absent) - set(local))
    parts = ["Would help here, best first:\n" + "\n".join(lines)] if lines else ["Nothing to install would help here."]
    if elsewhere:
        parts.append(f"For other devices than this machine's: {', '.join(elsewhere)} (see `layerzero backends`).")
    return parts


def _rank(library: Report) -> tuple[int, float]:
    """Sorts the libraries that were measured and faster first, the most time saved before the others; those that were
    measured and never faster last."""
    gain = library.get("gain")
    if gain is None:
        return (1, 0)
    return (0, -gain["faster"] * math.log(gain["speedup"])) if gain["faster"] else (2, 0)


def _gain(library: Report, first: int) -> str:
    """Returns the expected gain of a library and its source."""
    if gain := library.get("gain"):
        if not gain["faster"]:
            return f"measured on such a CPU, faster in none of {gain['calls']} calls"
        return f"measured on such a CPU, {gain['speedup']:.2f}x as fast in {gain['faster']} of {gain['calls']} calls"
    if first:
        return f"not measured here; by declared priority its kernels would come first in {first} operations"
    return (
        f"not measured here; {library['kernels']} kernels, chosen only where a policy prefers them or measured times do"
    )


def _command(name: str, item: Report) -> str:
    return item["fix"] or f"{name} cannot be used{': ' + item['code'] if item['code'] else ''}"


def _worth(platforms: set[str]) -> dict[str, int]:
    """Counts, for each unusable library, the operations in which its declared priority is above all usable ones."""
    best: dict[str, int] = {}
    wanted: dict[str, dict[str, int]] = {}
    for kernel in json.loads(_layerzero.kernels(None, False)):
        if kernel["reference"] or kernel["platform"] not in platforms:
            continue
        ranks = best if kernel["usable"] is not False else wanted.setdefault(kernel["backend"], {})
        ranks[kernel["operation"]] = max(ranks.get(kernel["operation"], 0), kernel["priority"])
    return {name: sum(rank > best.get(op, 0) for op, rank in ranks.items()) for name, ranks in wanted.items()}


def _cure(lacking: list[Report]) -> str:
    return ", ".join(dict.fromkeys(item["library"] for item in lacking)) or "no library has a kernel"


def _lines_of_policy(report: Report) -> list[str]:
    changed = report["policy"]["changed"]
    lines = [f"policy {report['policy']['hash']}: {len(changed)} keys changed"]
    return lines + [f"  {key} = {entry['value']} ({entry['origin']})" for key, entry in changed.items()]


def _verdict(report: Report) -> str:
    problems = [f"problem: {problem}" for problem in report["problems"]]
    return "\n".join([*problems, "ok" if report["ok"] else f"{len(problems)} problems"])
