"""`compile` and `dry_run`: the plan of a kernelized model, as data and as a table."""

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch import nn

from layerzero.errors import InvalidRequestError
from layerzero.integrations.transformers.kernelize import KernelizeReport, is_kernelized, kernelize, unkernelize
from layerzero.integrations.transformers.run.plan import program_of
from layerzero.integrations.transformers.run.released import ReleasedParameter

# (batch, length, positions before) for which a plan lists kernels by default.
PHASES = {"prefill": (1, 128, 0), "decode": (1, 1, 128)}


@dataclasses.dataclass
class ModelPlan:
    """How a model runs.

    report: what `kernelize` replaced and left, with reasons
    block: "block.decoder" or "block.encoder" if all layers run as one program; None if the parts run one by one
    why_not: why the program in the report does not run now (a later change, training mode, the device), or None
    phases: phase -> [{"operation", "kernel_id", "count"}] in order of first use, for batch 1
    memory: bytes: {"parameters", "blocks": of weights=, "cache": for one token of a sequence, "arena": {phase: for a run}};
    the last two only for a model that runs as one program
    """

    report: KernelizeReport
    block: str | None
    phases: dict[str, list[dict[str, Any]]]
    memory: dict[str, Any]
    why_not: str | None = None
    _program: Any = dataclasses.field(default=None, repr=False)

    def steps(self, batch: int = 1, length: int = 1, past: int = 0) -> list[dict[str, Any]]:
        """Returns the steps of a run of these sizes in order: {"operation", "kernel_id"}."""
        program = self._required()
        kernels = program.kernels(*self._arguments(batch, length, past))
        return [{"operation": o, "kernel_id": k} for o, k in zip(program.operations, kernels, strict=True)]

    def explain(self, step: int, batch: int = 1, length: int = 1, past: int = 0) -> dict[str, Any]:
        """Returns the selection report of one step: the kernel, and why each other kernel was not chosen."""
        return self._required().explain(step, *self._arguments(batch, length, past))

    def _required(self) -> Any:
        if self._program is None:
            why = self.why_not or self.report.left.get("decoder", "it runs part by part")
            raise InvalidRequestError("plan", "a model that runs as one program", f"one that does not: {why}")
        return self._program.program

    def _arguments(self, batch: int, length: int, past: int) -> Any:
        return self._program.arguments(batch, length, past)

    def __str__(self) -> str:
        lines = [str(self.report)]
        lines += [] if self.why_not is None else [f"no program runs: {self.why_not}"]
        for phase, rows in self.phases.items():
            batch, length, past = PHASES[phase]
            lines.append(f"{phase} (batch {batch}, {length} tokens, {past} before), {self.block}:")
            lines += [f"  {row['count']:4} x {row['operation']:20} {row['kernel_id']}" for row in rows]
        sizes = [f"{name} {self.memory[name] / 2**20:.1f} MiB" for name in ("parameters", "blocks")]
        sizes += [f"arena of {phase} {size / 2**20:.1f} MiB" for phase, size in self.memory["arena"].items()]
        sizes += [f"cache {self.memory['cache'] / 2**10:.1f} KiB a token"] if self.memory["cache"] else []
        lines.append(f"memory: {', '.join(sizes)}")
        return "\n".join(lines)


def _memory(model: nn.Module, report: KernelizeReport, program: Any) -> dict[str, Any]:
    own = sum(parameter.nbytes for parameter in model.parameters() if type(parameter) is not ReleasedParameter)
    arena = {} if program is None else {p: program.program.arena_bytes(b * n) for p, (b, n, _) in PHASES.items()}
    return {
        "parameters": own,
        "blocks": report.weights.bytes if report.weights else 0,
        "cache": program.cache_bytes() if program else None,
        "arena": arena,
    }


def _plan(model: nn.Module, report: KernelizeReport) -> ModelPlan:
    program, why_not = program_of(model)
    block = f"block.{program.plan.stack.kind}" if program else None
    plan = ModelPlan(report, block, {}, _memory(model, report, program), why_not, program)
    for phase, sizes in PHASES.items() if program else ():
        counts = Counter((step["operation"], step["kernel_id"]) for step in plan.steps(*sizes))
        plan.phases[phase] = [{"operation": o, "kernel_id": k, "count": n} for (o, k), n in counts.items()]
    return plan


def compile(model: nn.Module, weights: str | None = None, **options: Any) -> ModelPlan:
    """Kernelizes a model and returns the plan of how it runs from now on. options: those of `kernelize`.

    If the operations can compute all layers, the layers run as one program from C++; `plan.phases` lists its kernels, and
    `plan.explain` says why they were chosen. `unkernelize(model)` restores the model.
    """
    return _plan(model, kernelize(model, weights, **options))


def dry_run(model: nn.Module, weights: str | None = None, **options: Any) -> ModelPlan:
    """Returns the plan that `compile` would return, and leaves the model unchanged."""
    if options.get("release_originals"):
        raise InvalidRequestError(
            "release_originals", "none for dry_run, which changes nothing", "True", "leave it out"
        )
    if not isinstance(model, nn.Module) or is_kernelized(model):
        return _plan(model, kernelize(model, weights, **options))
    try:
        with torch.inference_mode():
            return _plan(model, kernelize(model, weights, **options))
    finally:
        unkernelize(model)
