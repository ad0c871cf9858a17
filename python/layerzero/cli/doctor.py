"""layerzero doctor."""

import contextlib
import importlib

import typer

import layerzero as lz
from layerzero.cli._output import Json, print_json, print_table
from layerzero.cli.backends import print_backends


def command(json: Json = False) -> None:
    """What LayerZero sees here: devices, libraries, policy, problems. Exit code 1 if something is wrong."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    report = lz.doctor().to_dict()
    if json:
        print_json(report)
    else:
        _print(report)
    raise typer.Exit(0 if report["ok"] else 1)


def _print(report: dict) -> None:
    print(f"layerzero {report['layerzero']['version']} (build {report['layerzero']['build']})")
    print(f"python {report['python']}, torch {report['torch'] or 'not installed'}\n")
    devices = report["devices"]
    print_table("Devices", ["name", "model", "what kernels ask for"], _devices(devices["devices"]))
    if devices["why_no_cuda"]:
        print(f"no CUDA device: {devices['why_no_cuda']}")
    threads = report["threads"]
    print(f"threads: {threads['usable']} of this process, {threads['torch'] or 'none'} of torch")
    if threads["advice"]:
        print(f"  {threads['advice']}")
    print(f"simulated for explain --device: {', '.join(d['name'] for d in devices['simulated'])}\n")
    print_backends([{"name": name, **library} for name, library in report["libraries"].items()])
    _print_references(report["served_by_reference"])
    changed = report["policy"]["changed"]
    print(f"\npolicy {report['policy']['hash']}: {len(changed)} keys changed")
    for key, entry in changed.items():
        print(f"  {key} = {entry['value']} ({entry['origin']})")
    for problem in report["problems"]:
        print(f"problem: {problem}")
    print("ok" if report["ok"] else f"{len(report['problems'])} problems")


def _print_references(served: list[dict]) -> None:
    """What only a reference serves: the calls that it has answered in this process, and what would change that."""
    if not served:
        return
    print()
    rows = [[s["operation"], s["platform"], s["calls"], _cure(s["lacking"])] for s in served]
    print_table("Only their reference serves", ["operation", "on", "calls", "faster with"], rows)


def _cure(lacking: list[dict]) -> str:
    return ", ".join(dict.fromkeys(item["library"] for item in lacking)) or "no library has a kernel"


def _devices(devices: list[dict]) -> list[list[str]]:
    return [[d["name"], d["model"], _abilities(d)] for d in devices]


def _abilities(device: dict) -> str:
    """Instruction sets of a CPU; of a GPU its architecture, cores, memory and driver."""
    facts = device["facts"]
    if device["platform"] != "cuda":
        return device["isa"]
    memory = f"{facts['memory_bytes'] / 2**30:.0f} GiB"
    cuda = f"CUDA {facts['cuda_version'] // 1000}.{facts['cuda_version'] % 1000 // 10}"
    return f"sm_{facts['sm']}, {facts['num_cores']} multiprocessors, {memory}, {cuda}"
