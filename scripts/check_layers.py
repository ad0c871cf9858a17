"""Checks the architecture: which files may include or import which, and what the engine never does."""

import ast
import re
import sys
from pathlib import Path

from findings import Finding, code_only, includes, main, source_files

# The stages in the order of the data flow (ARCHITECTURE.md). A file of src/pipeline belongs to the stage whose name it
# begins with; src/policy is a stage of its own. A stage includes its own files and those of earlier stages.
STAGES = (
    ("request",),
    ("context",),
    ("policy",),
    ("cache",),
    ("filter",),
    ("score",),
    ("plan",),
    ("dispatch", "transform"),
    ("selector",),  # composes the stages and may include every one
)

# Folders or files that each folder may include besides itself. The longest prefix wins.
COMMON = ("core", "base", "layerzero")
ALLOWED = {
    "src/base": ("layerzero", "core/status.h"),
    "src/core": ("base", "layerzero"),
    "src/platform": COMMON,
    "src/registry": (*COMMON, "platform", "gen", "ops"),
    "src/policy": (*COMMON, "platform", "registry"),
    "src/health": (*COMMON, "platform", "registry", "policy", "gen", "perfdb/device_id.h"),
    "src/table": COMMON,
    "src/pipeline": (*COMMON, "platform", "registry", "policy", "health", "table"),
    "src/engine": (
        *COMMON,
        "platform",
        "registry",
        "policy",
        "health",
        "pipeline",
        "perfdb",
        "kvcache",
        "table",
        "engine",
        "ops",
        "gen",
    ),
    "src/program": (*COMMON, "platform", "registry", "pipeline", "engine"),
    "src/verify": (*COMMON, "platform", "registry", "pipeline", "engine", "ops"),
    "src/perfdb": (*COMMON, "platform", "registry"),
    "src/kvcache": COMMON,
    "src/tokenize": COMMON,
    "src/worker": COMMON,
    "ops": (*COMMON, "ops"),
    # The ISA bits that constraints name; the device that a library's handle belongs to.
    "kernels": (*COMMON, "ops", "kernels", "tokenize", "platform/device.h", "platform/cuda_driver.h"),
    "include/layerzero": ("layerzero",),
}
OWN = {
    "base",
    "core",
    "platform",
    "registry",
    "policy",
    "health",
    "pipeline",
    "engine",
    "program",
    "verify",
    "perfdb",
    "kvcache",
    "tokenize",
    "worker",
    "table",
    "ops",
    "kernels",
}
OWN |= {"layerzero", "bindings", "gen"}

# (rule, pattern in code, files exempt, what to do instead). Checked in the engine's folders only.
NEVER = (
    (
        "getenv",
        re.compile(r"\b(?:secure_)?getenv\s*\(|\benviron\b"),
        re.compile(r"^src/policy/\w+\.cpp$"),
        "only the policy reader reads the environment; make it a policy key",
    ),
    (
        "prints",
        re.compile(
            r"\b(?:v?f?printf|v?dprintf|f?puts|f?putc|putchar|perror)\s*\(|\bstd::(?:cout|cerr|clog)\b"
            r"|\b(?:stdout|stderr)\b"
        ),
        None,
        "the engine prints nothing; return a Status or write to the log sink",
    ),
    (
        "throws",
        re.compile(r"\bthrow\b"),
        re.compile(r"^src/policy/yaml\.cpp$"),  # stops yaml-cpp from its handler; caught in that file
        "the engine throws nothing; return a Status",
    ),
    (
        "exits",
        re.compile(r"(?<![\w.>:])(?:std::)?(?:abort|_?exit|quick_exit|terminate)\s*\("),
        None,
        "the engine never ends the process; return a Status",
    ),
    (
        "process-state",
        re.compile(r"\b(?:setlocale|sigaction|std::signal|setenv|putenv|unsetenv|chdir|fesetround)\s*\("),
        None,
        "the engine leaves the process as it is",
    ),
)
NEVER_INCLUDED = re.compile(r"^(?:Python\.h|torch/|ATen/|c10/|pybind11/|nanobind/)")
STREAMS = re.compile(r"^(?:iostream|print|syncstream)$")
FAST_MATH = re.compile(r"-ffast-math|-Ofast|-funsafe-math-optimizations|--use_fast_math")


def stage_of(stem: str) -> int | None:
    for i, names in enumerate(STAGES):
        if any(stem == n or stem.startswith(f"{n}_") for n in names):
            return i
    return None


def may_include(folder: str, top: str, path: str) -> bool:
    return top == folder.rpartition("/")[2] or top in ALLOWED[folder] or path in ALLOWED[folder]


def include_findings(name: str, text: str) -> list[Finding]:
    found = []
    folder = max((f for f in ALLOWED if name.startswith(f"{f}/")), key=len, default=None)
    stage = None
    if folder == "src/pipeline":
        stage = stage_of(Path(name).stem)
        if stage is None:
            found.append(Finding(name, 1, "stage", "no stage has this name; see STAGES in scripts/check_layers.py"))
    for line, path in includes(text):
        top, _, rest = path.partition("/")
        if NEVER_INCLUDED.match(path):
            found.append(Finding(name, line, "framework", f"<{path}> is only allowed in bindings/"))
        elif STREAMS.match(path):
            found.append(Finding(name, line, "prints", f"<{path}>: the engine prints nothing"))
        elif folder and rest and top in OWN and not may_include(folder, top, path):
            found.append(Finding(name, line, "layer", f"{folder} may not include {path}"))
        elif stage is not None and top in ("pipeline", "policy"):
            other = stage_of(Path(rest).stem if top == "pipeline" else top)
            if other is not None and other > stage:
                message = f"stage {STAGES[stage][0]} may not include {path}, a later stage"
                found.append(Finding(name, line, "layer", message))
    return found


def never_findings(name: str, text: str) -> list[Finding]:
    code = code_only(text)
    found = []
    for rule, pattern, exempt, advice in NEVER:
        if exempt and exempt.match(name):
            continue
        for match in pattern.finditer(code):
            line = code.count("\n", 0, match.start()) + 1
            found.append(Finding(name, line, rule, f"{match.group().strip(' (')}: {advice}"))
    return found


# The parts of the Python package in order: `import layerzero` imports these, and each imports itself and earlier ones. Any
# other part imports whatever it needs and is imported by none of these.
PACKAGE = ("errors", "host", "contracts", "torch", "backends", "settings", "inspection")


def import_findings(name: str, text: str) -> list[Finding]:
    part = Path(name).relative_to("python/layerzero").parts[0].removesuffix(".py")
    if part not in PACKAGE:
        return []
    found = []
    body: list[ast.stmt] = list(ast.parse(text).body)
    for node in body:  # imports inside functions run later and may be of any part
        if isinstance(node, (ast.If, ast.Try, ast.With)) and "TYPE_CHECKING" not in ast.dump(node):
            body += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "layerzero":
            continue
        _, _, inner = str(node.module).partition(".")
        for other in [inner.partition(".")[0]] if inner else [alias.name for alias in node.names]:
            later = other not in PACKAGE or PACKAGE.index(other) > PACKAGE.index(part)
            if later and other != "_layerzero":
                found.append(Finding(name, node.lineno, "layer", f"layerzero.{part} may not import layerzero.{other}"))
    return found


# The parts of the Transformers integration in order, each on its own floor: files that all others share, folders, what replaces
# the parts of a model, and the entry. A part imports itself and those before it, and no modules import each other in a circle.
INTEGRATION = "layerzero.integrations.transformers"
FLOORS = (
    ("arguments", "biases", "choices", "counts", "layers", "probe", "progress", "structure", "thresholds"),
    ("caches",),
    ("run",),
    ("recognise",),
    ("accuracy", "block_forwards", "parts", "quantized"),
    ("compiled", "kernelize", "serve", "__init__"),
)


def floor_of(module: str) -> int | None:
    part = module.partition(".")[0]
    return next((floor for floor, parts in enumerate(FLOORS) if part in parts), None)


def imports_within(modules: dict[str, str]) -> dict[str, list[tuple[int, str]]]:
    """Module -> [(line, module)] that it imports of the same ones, also within functions. modules: name -> its code."""
    found = {}
    for name, text in modules.items():
        lines = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
        named = ((n.lineno, f"{n.module}.{alias.name}", str(n.module)) for n in lines for alias in n.names)
        inner = ((line, f"{each}."[len(INTEGRATION) + 1 :][:-1]) for line, *both in named for each in both)
        found[name] = [(line, each) for line, each in inner if each in modules and each != name]
    return found


def floor_findings(folder: str, modules: dict[str, str]) -> list[Finding]:
    """Of modules by their names within the integration, such as "run.plan"."""
    found, imports = [], imports_within(modules)

    def file_of(module: str) -> str:
        return f"{folder}/{module.replace('.', '/')}.py"

    for name, others in imports.items():
        own = floor_of(name)
        if own is None:
            found.append(Finding(file_of(name), 1, "floor", "is on no floor; see FLOORS in scripts/check_layers.py"))
            continue
        for line, other in others:
            above = floor_of(other)
            if above is not None and above > own:
                found.append(Finding(file_of(name), line, "floor", f"may not import {other}, which is above it"))
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            found.append(Finding(file_of(name), 1, "circle", circle))
        elif name not in done:
            for _, other in imports[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in imports:
        walk(name, ())
    return found


def check(root: Path) -> tuple[int, list[Finding]]:
    files = source_files(root, ("src", "ops", "kernels", "include"), (".h", ".cpp", ".cu", ".inc"))
    findings = []
    for path in files:
        name, text = path.relative_to(root).as_posix(), path.read_text()
        findings += include_findings(name, text) + never_findings(name, text)
    modules = source_files(root, ("python/layerzero",), (".py",))
    for path in modules:
        findings += import_findings(path.relative_to(root).as_posix(), path.read_text())
    folder = root / "python" / INTEGRATION.replace(".", "/")
    within = {
        path.relative_to(folder).with_suffix("").as_posix().replace("/", "."): path
        for path in modules
        if folder in path.parents
    }
    findings += floor_findings(
        folder.relative_to(root).as_posix(), {name: path.read_text() for name, path in within.items()}
    )
    builds = source_files(root, ("cmake", "src", "bindings", "tests", "bench"), (".cmake", "CMakeLists.txt"))
    for path in [*builds, *(p for p in (root / "CMakeLists.txt", root / "CMakePresets.json") if p.is_file())]:
        text = re.sub(r"#[^\n]*", "", path.read_text())
        for match in FAST_MATH.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            name = path.relative_to(root).as_posix()
            findings.append(Finding(name, line, "fast-math", f"{match.group()} changes the whole process"))
    return len(files) + len(modules) + len(builds), findings


if __name__ == "__main__":
    sys.exit(main(__doc__, check))
