"""The report of `kernelize`, and the counts in it that go on while the model runs."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class KernelizeReport:
    """What `kernelize` did with a model or, by `components`, with each model of a pipeline.

    replaced: part -> {"count": modules, "operation", "calls": how often the operation answered so far}
    left: part, or path of a module -> why it stays with diffusers' own code
    captured: of a model (for a pipeline see its components), {"calls": forwards that were replays of a CUDA graph, "kinds": graphs, "left": shapes -> why none}
    components: name in the pipeline -> its report; what they replaced and left is in this report too, under "name.part"
    """

    replaced: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    left: dict[str, str] = dataclasses.field(default_factory=dict)
    captured: dict[str, Any] = dataclasses.field(default_factory=lambda: {"calls": 0, "kinds": 0, "left": {}})
    components: dict[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, part: str, operation: str) -> dict[str, Any]:
        """The entry of one module more."""
        entry = self.replaced.setdefault(part, {"count": 0, "operation": operation, "calls": 0})
        entry["count"] += 1
        return entry

    def add_component(self, name: str, report: Any) -> None:
        self.components[name] = report
        self.replaced |= {f"{name}.{part}": entry for part, entry in report.replaced.items()}
        self.left |= {f"{name}.{part}": reason for part, reason in report.left.items()}

    def __str__(self) -> str:
        done = [f"{p}: {e['count']} through {e['operation']}, {e['calls']} calls" for p, e in self.replaced.items()]
        done += [f"{name}{c['calls']} calls as CUDA graphs" for name, c in self._graphs() if c["calls"]]
        done += [f"{name}{kind}: no CUDA graph, {why}" for name, c in self._graphs() for kind, why in c["left"].items()]
        return "\n".join(done + [f"{part}: left, {reason}" for part, reason in self.left.items()])

    def _graphs(self) -> list[tuple[str, dict[str, Any]]]:
        own = (report for report in self.components.items() if isinstance(report[1], KernelizeReport))
        return [("", self.captured), *((f"{name}: ", report.captured) for name, report in own)]
