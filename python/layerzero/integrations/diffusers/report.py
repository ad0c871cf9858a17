"""The report of `kernelize`, and the counts in it that go on while the model runs."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class KernelizeReport:
    """What `kernelize` did with a model or, by `components`, with each model of a pipeline.

    replaced: part -> {"count": modules, "operation", "calls": how often the operation answered so far}
    left: part, or path of a module -> why it stays with diffusers' own code
    components: name in the pipeline -> its report; what they replaced and left is in this report too, under "name.part"
    """

    replaced: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    left: dict[str, str] = dataclasses.field(default_factory=dict)
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
        return "\n".join(done + [f"{part}: left, {reason}" for part, reason in self.left.items()])
