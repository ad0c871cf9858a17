"""Checks that each policy key, reason code and descriptor key has code that reads or raises it, and a test for that.

Each is a row of a table in C++; this prints it with both lines, and an empty cell is a finding. A test proves a policy
key or a descriptor key with a comment, "proves: cache.max_size"; reason codes are in the tables of
tests/python/test_reasons.py.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from findings import Finding, main, source_files

KEYS, PARSER = "src/policy/keys.cpp", "src/policy/policy.cpp"
CODES, RAISED_TEST = "src/core/reason.cpp", "tests/python/test_reasons.py"
FACTS = "src/registry/fact_table.h"
# Keys that are not members of Policy by the same name, and what reads them.
READ_AS = {
    "security.require_signatures": ("src/policy/trust.cpp", '"security.require_signatures"'),
    "security.trusted_keys": ("src/policy/trust.cpp", '"security.trusted_keys"'),
    "auto_tune_on_warmup": ("python/layerzero/tuning/auto.py", '["auto_tune_on_warmup"]'),
    "perfdb.auto_tune": ("bindings/python/timing.cpp", '"perfdb.auto_tune"'),
    "perfdb.tune_samples": ("python/layerzero/tuning/session.py", '"perfdb.tune_samples"'),
    "perfdb.sample_rate": ("src/engine/engine.cpp", '"perfdb.sample_rate"'),
    "perfdb.min_samples": ("src/engine/engine.cpp", '"perfdb.min_samples"'),
    "version": (KEYS, '"version", "1", 1, 1'),  # the only value
    "locks": ("src/policy/store.cpp", "LocksFor("),
    "plan_mode": ("python/layerzero/tables/solve.py", 'policy["plan_mode"]'),
    "pipelines": ("python/layerzero/host/pipelines.py", 'keys["pipelines"]'),
    "rules": ("src/policy/store.cpp", "policy.rules"),
    "devices.sm_to_generation": ("src/engine/engine.cpp", "policy.sm_to_generation"),
    "graph.warmup_iterations": ("python/layerzero/graphs.py", 'keys["graph.warmup_iterations"]'),
    "graph.memory_delta_warning_mb": ("python/layerzero/graphs.py", 'keys["graph.memory_delta_warning_mb"]'),
    "compatibility.check_at_load": (
        "python/layerzero/backends/compatibility.py",
        'keys["compatibility.check_at_load"]',
    ),
    "compatibility.fail_on_incompatible": (
        "python/layerzero/backends/compatibility.py",
        'keys["compatibility.fail_on_incompatible"]',
    ),
    "compatibility.matrix_path": ("python/layerzero/backends/matrix.py", 'keys["compatibility.matrix_path"]'),
    "backend_isolation": ("python/layerzero/host/policy.py", "self.modes.get(library)"),
    "backend_containers": ("python/layerzero/isolation/process.py", "settings.container_of(library)"),
    "isolation.timeout_s": ("python/layerzero/isolation/client.py", "settings.timeout_s"),
    "isolation.start_timeout_s": ("python/layerzero/isolation/client.py", "settings.start_timeout_s"),
    "isolation.arena_mb": ("python/layerzero/isolation/process.py", "settings.arena_mb"),
    "isolation.memory_mb": ("python/layerzero/isolation/process.py", "settings.memory_mb"),
    "jit.enable_background_compile": ("python/layerzero/jit/library.py", "enable_background_compile"),
    "jit.compile_queue_max_size": ("python/layerzero/jit/work.py", "compile_queue_max_size"),
    "jit.max_concurrent_jit": ("python/layerzero/jit/library.py", "settings.max_concurrent_jit"),
    "jit.memory_mb": ("python/layerzero/jit/library.py", "settings.memory_mb"),
    "jit.manifest_path": ("python/layerzero/jit/manifest.py", "jit_settings().manifest_path"),
    "jit.manifest_stale_days": ("python/layerzero/jit/manifest.py", "manifest_stale_days"),
    "jit.cache_max_mb": ("python/layerzero/jit/library.py", "settings.cache_max_mb"),
    "isolation.try_imports": ("python/layerzero/backends/proof.py", "settings.try_imports"),
    "tokenizer_cache.enable_namespace_isolation": (
        "python/layerzero/tokenizers/cache.py",
        "enable_namespace_isolation",
    ),
    "tokenizer_cache.validation_rate_initial": ("python/layerzero/tokenizers/cache.py", "validation_rate_initial"),
    "tokenizer_cache.validation_rate_warmup": ("python/layerzero/tokenizers/cache.py", "validation_rate_warmup"),
    "tokenizer_cache.validation_rate_stable": ("python/layerzero/tokenizers/cache.py", "validation_rate_stable"),
}


@dataclass(frozen=True)
class Promise:
    kind: str
    name: str
    declared: str  # "file:line"
    reader: str | None
    test: str | None


@cache
def lines(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(errors="replace").splitlines())


class Tree:
    """The repository's sources, searched line by line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.code = source_files(root, ["src", "kernels", "bindings", "ops"], (".cpp", ".h", ".cu", ".cuh"))
        self.python = source_files(root, ["python/layerzero"], (".py", ".json"))
        self.tests = source_files(root, ["tests"], (".cpp", ".py", ".h"))

    def at(self, path: Path, number: int) -> str:
        return f"{path.relative_to(self.root).as_posix()}:{number}"

    def first(self, paths: Iterable[Path], pattern: str, without: Iterable[str] = ()) -> str | None:
        """Returns the first line that matches and is not a comment, outside the files `without`."""
        compiled, skipped = re.compile(pattern), tuple(self.root / name for name in without)
        for path in paths:
            if path in skipped or not path.is_file():
                continue
            for number, line in enumerate(lines(path), 1):
                if compiled.search(line) and not line.lstrip().startswith(("//", "#")):
                    return self.at(path, number)
        return None

    def rows(self, file: str, begin: str, row: str) -> Iterator[tuple[str, str]]:
        """Yields (name, declared at) of each row of the table that begins with `begin`."""
        inside, compiled = False, re.compile(row)
        path = self.root / file
        for number, line in enumerate(lines(path) if path.is_file() else (), 1):
            inside = inside or begin in line
            if inside and (found := compiled.search(line)):
                yield found.group(1), self.at(path, number)
            if inside and line.startswith("}"):
                return

    def proof(self, name: str) -> str | None:
        """Returns the test with the comment "proves: name"; several names are separated by commas."""
        compiled = re.compile(r"(?://|#) proves:.*(?<![\w.])" + re.escape(name) + r"(?![\w.])")
        for path in self.tests:
            for number, line in enumerate(lines(path), 1):
                if compiled.search(line):
                    return self.at(path, number)
        return None


def policy_keys(tree: Tree) -> Iterator[Promise]:
    members = dict(re.findall(r'set\("([\w.]+)", policy\.(\w+)\)', "\n".join(lines(tree.root / PARSER))))
    # Reading the files and comparing names does not count as implementing a key.
    readers = [path for path in tree.code if path.name in ("store.cpp", "facts.cpp") or path.parent.name != "policy"]
    for name, declared in tree.rows(KEYS, "kKeys = ", r'(?:^    \w+\((?:KeyType::\w+, )?|\.name = )"([\w.]+)"'):
        if name in READ_AS:
            file, text = READ_AS[name]
            reader = tree.first([tree.root / file], re.escape(text))
        else:
            member = members.get(name)
            reader = member and tree.first(readers, rf"\b(?:p\.|policy\.|policy->|policy\)->){member}\b")
        yield Promise("policy key", name, declared, reader, tree.proof(name))


def reason_codes(tree: Tree) -> Iterator[Promise]:
    sources = [*tree.code, *tree.python]
    for name, declared in tree.rows(CODES, "kInfos = ", r'^    \{"([A-Z_]+)"'):
        if name == "AUTO":
            continue
        constant = "".join(part.capitalize() for part in name.split("_"))
        reader = tree.first(
            sources,
            rf"(?<![=!]= )ReasonCode::k{constant}\b|(?<!:)\bk{constant}\)|\b{name}\b",
            [CODES, "src/core/reason.h"],
        )
        test = tree.first([tree.root / RAISED_TEST], rf'^    "{name}": ')
        yield Promise("reason code", name, declared, reader, test)


def facts(tree: Tree) -> Iterator[Promise]:
    readers = source_files(tree.root, ["src/registry"], (".cpp",))
    for name, declared in tree.rows(FACTS, "kFacts = ", r'^    \{"(\w+)", FactUse::'):
        refused = tree.first([tree.root / FACTS], rf'"{name}", FactUse::kUnsupported')
        reader = tree.first(readers, "FactUse::kUnsupported" if refused else rf'"{name}"')
        test = tree.proof(name) or tree.first(tree.tests, rf'"{name}\\?"|\b{name}=')
        yield Promise("descriptor fact", name, declared, reader, test)


def promises(root: Path) -> list[Promise]:
    tree = Tree(root)
    return [*policy_keys(tree), *reason_codes(tree), *facts(tree)]


def findings_of(promise: Promise) -> Iterator[Finding]:
    file, _, line = promise.declared.rpartition(":")
    if promise.reader is None:
        yield Finding(file, int(line), "unread", f"nothing reads the {promise.kind} {promise.name}; delete it")
    if promise.test is None:
        yield Finding(file, int(line), "unproven", f"no test shows the {promise.kind} {promise.name}")


def check(root: Path) -> tuple[int, list[Finding]]:
    found = promises(root)
    empty = [kind for kind in ("policy key", "reason code") if not any(p.kind == kind for p in found)]
    missing = [
        Finding("scripts/check_promises.py", 1, "no-table", f"found no {kind}: where is its table?") for kind in empty
    ]
    return len(found), missing + [finding for promise in found for finding in findings_of(promise)]


if __name__ == "__main__":
    if "--table" in sys.argv[1:]:
        for p in promises(Path(__file__).resolve().parent.parent):
            print(f"{p.kind:16}{p.name:34}{p.reader or '-':48}{p.test or '-'}")
        sys.exit()
    sys.exit(main(__doc__.splitlines()[0], check))
