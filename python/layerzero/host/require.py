"""`lz.require`: a block fails if other kernels run in it than those that a benchmark or a test means to measure."""

import json
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any

from layerzero import _layerzero
from layerzero.errors import InvalidRequestError, RequirementError, WrongTypeError
from layerzero.host import blocks
from layerzero.host.observe import KernelRun, observe


class require:
    """Raises RequirementError at the end of the `with` block if a kernel ran that is not one of `kernels`.

    with lz.require(kernels=["hwy.*", "onednn"], no_fallback=True): model(x)

    kernels: ids of kernels or, without a dot, libraries; globs. None: any kernel. no_fallback: no reference may run, and
    no kernel in place of one that failed. operations: the flat names for which this holds (globs); None: all.
    Runs of every thread are counted while the block is open. The error says what ran instead, and has it in `ran`, a list
    of {"operation", "kernel_id", "reference", "fallback", "runs"}. An exception in the block is not replaced. After the
    block `ran` of this object lists every kernel that ran, `refused` those that should not have.
    """

    def __init__(
        self,
        *,
        kernels: Iterable[str] | None = None,
        no_fallback: bool = False,
        operations: Iterable[str] | None = None,
    ) -> None:
        self._kernels = _patterns("kernels", kernels)
        self._operations = _patterns("operations", operations)
        self._no_fallback = no_fallback
        if self._kernels is None and not no_fallback:
            raise InvalidRequestError("require", "kernels or no_fallback=True", "neither")
        self._runs: Counter[tuple[str, str, bool]] = Counter()
        self._observer = observe(self._count)
        self._open = False
        self.ran: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []

    def __enter__(self) -> "require":
        if self._open:
            raise blocks.entered_twice("require")
        self._runs.clear()
        self._observer.__enter__()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            raise blocks.not_entered("require")
        self._open = False
        self._observer.__exit__(kind, error, trace)
        references = {k["kernel_id"] for k in json.loads(_layerzero.kernels(None, False)) if k["reference"]}
        self.ran = [
            {"operation": op, "kernel_id": k, "reference": k in references, "fallback": fallback, "runs": runs}
            for (op, k, fallback), runs in sorted(self._runs.items())
        ]
        self.refused = [run for run in self.ran if self._is_meant(run) and not self._is_allowed(run)]
        if self.refused and error is None:
            fix = "`lz.explain` and `layerzero health show` say why"
            raise RequirementError("require", self._wanted(), _text(self.refused), fix, ran=self.refused)

    def _count(self, run: KernelRun) -> None:
        if run.error is None:
            self._runs[run.operation, run.kernel_id, run.fallback] += 1

    def _is_meant(self, run: dict[str, Any]) -> bool:
        if self._operations is None:
            return True
        return any(fnmatchcase(run["operation"], pattern) for pattern in self._operations)

    def _is_allowed(self, run: dict[str, Any]) -> bool:
        if self._no_fallback and (run["fallback"] or run["reference"]):
            return False
        kernel_id = run["kernel_id"]
        return self._kernels is None or any(
            fnmatchcase(kernel_id if "." in pattern else kernel_id.partition(".")[0], pattern)
            for pattern in self._kernels
        )

    def _wanted(self) -> str:
        wanted = [] if self._kernels is None else [f"only {', '.join(self._kernels)}"]
        return " and ".join([*wanted, *(["no fallback"] if self._no_fallback else [])])


def _text(ran: list[dict[str, Any]]) -> str:
    lines = ["instead:"]
    for run in ran:
        why = ", after another kernel failed" if run["fallback"] else ", a reference" if run["reference"] else ""
        times = "once" if run["runs"] == 1 else f"{run['runs']} times"
        lines.append(f"  {run['operation']}: {run['kernel_id']} {times}{why}")
    return "\n".join(lines)


def _patterns(name: str, given: Iterable[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, Iterable):
        raise WrongTypeError(name, "a list of texts", repr(given))
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise WrongTypeError(name, "a list of texts", repr(pattern))
    if not patterns:
        raise InvalidRequestError(name, "at least one pattern, or None", "an empty list")
    return patterns
