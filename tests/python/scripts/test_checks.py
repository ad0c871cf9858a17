"""The checks in scripts/ catch what they are there for, and pass on this repository's own tree where that is promised."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(check: str, root: Path) -> tuple[int, list[dict]]:
    command = [sys.executable, str(ROOT / "scripts" / f"{check}.py"), "--json", "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout)["findings"]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


CLEAN = {
    "src/pipeline/score.cpp": '#include "pipeline/filter.h"\n#include "core/status.h"\n#include "registry/registry.h"\n',
    "src/policy/environment.cpp": '#include <cstdlib>\nconst char* Read() { return getenv("LAYERZERO_DEBUG"); }\n',
    "src/pipeline/selector.cpp": '#include "pipeline/dispatch.h"\n',
    "src/base/json.cpp": '#include "core/status.h"\n',
    "src/base/log.cpp": '// printf(), throw and getenv in a comment\nconst char* kText = "throw printf(";\n',
    "python/layerzero/torch/slow_path.py": "from layerzero import _layerzero\nfrom layerzero.contracts import axes\n",
    "python/layerzero/host/log.py": "def late():\n    from layerzero.backends import report\n",
    "python/layerzero/cli/list.py": "from layerzero.inspection import text\n",
    "kernels/norm/rms/hwy.cpp": '#include "kernels/launch.h"\n#include "ops/norm/rms.h"\nint n = snprintf(b, 4, "x");\n',
}

BROKEN = [
    ("layer", "src/pipeline/filter.cpp", '#include "pipeline/plan.h"\n'),
    ("layer", "src/pipeline/request.h", '\n#include "policy/policy.h"\n'),
    ("layer", "src/base/hash.h", '#include "core/dtype.h"\n'),
    ("layer", "src/platform/cpu.cpp", '#include "pipeline/context.h"\n'),
    ("layer", "kernels/norm/rms/x.cpp", '#include "pipeline/plan.h"\n'),
    ("layer", "include/layerzero/layerzero.h", '#include "core/status.h"\n'),
    ("layer", "python/layerzero/contracts/axes.py", "from layerzero.torch import attach\n"),
    ("layer", "python/layerzero/errors.py", "import json\nfrom layerzero import _layerzero, host\n"),
    (
        "layer",
        "python/layerzero/inspection/report.py",
        "try:\n    from layerzero.bench import host\nfinally:\n    pass\n",
    ),
    ("stage", "src/pipeline/helpers.cpp", "\n"),
    ("getenv", "src/platform/cpu.cpp", 'auto x = std::getenv("HOME");\n'),
    ("getenv", "src/pipeline/context.cpp", 'auto x = secure_getenv("HOME");\n'),
    ("framework", "src/engine/engine.cpp", "#include <torch/csrc/stable/ops.h>\n"),
    ("framework", "kernels/norm/rms/x.cpp", '#  include "Python.h"\n'),
    ("prints", "src/engine/engine.cpp", "#include <iostream>\n"),
    ("prints", "src/engine/engine.cpp", 'void F() { std::printf("x"); }\n'),
    ("prints", "src/engine/engine.cpp", 'void F() { fprintf(stderr, "x"); }\n'),
    ("throws", "src/engine/engine.cpp", "void F() { throw 1; }\n"),
    ("exits", "src/engine/engine.cpp", "void F() { std::abort(); }\n"),
    ("process-state", "src/engine/engine.cpp", 'void F() { setlocale(0, "C"); }\n'),
    ("fast-math", "cmake/x.cmake", "add_compile_options(-O2 -ffast-math)\n"),
]


def test_layers_accepts_what_is_allowed(tmp_path):
    assert run("check_layers", write(tmp_path, CLEAN)) == (0, [])


@pytest.mark.parametrize(("rule", "file", "text"), BROKEN, ids=[f"{r}-{f}" for r, f, _ in BROKEN])
def test_layers_catches(tmp_path, rule, file, text):
    code, findings = run("check_layers", write(tmp_path, {**CLEAN, file: text}))
    assert code == 1
    assert {(f["rule"], f["file"]) for f in findings} == {(rule, file)}


def test_layers_names_the_line(tmp_path):
    text = "/* two\n lines */\nvoid F() {}\nvoid G() { throw 1; }\n"
    _, findings = run("check_layers", write(tmp_path, {"src/engine/engine.cpp": text}))
    assert findings[0]["line"] == 4


INTEGRATION = "python/layerzero/integrations/transformers"
FLOORS = {f"{INTEGRATION}/kernelize.py": "from layerzero.integrations.transformers.run.plan import Plan\n"}


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        ("floor", {"run/plan.py": "def late():\n    from layerzero.integrations.transformers import kernelize\n"}),
        ("floor", {"run/plan.py": "", "caches/rows.py": "from layerzero.integrations.transformers.run import plan\n"}),
        ("floor", {"odd.py": ""}),
        (
            "circle",
            {
                "run/plan.py": "from layerzero.integrations.transformers.run import block\n",
                "run/block.py": "from layerzero.integrations.transformers.run.plan import Plan\n",
            },
        ),
    ],
)
def test_floors_of_the_transformers_integration(tmp_path, rule, files):
    code, findings = run("check_layers", write(tmp_path, FLOORS | {f"{INTEGRATION}/{n}": t for n, t in files.items()}))
    assert code == 1 and rule in {found["rule"] for found in findings}
    code, findings = run("check_layers", write(tmp_path / "clean", FLOORS | {f"{INTEGRATION}/run/plan.py": ""}))
    assert (code, findings) == (0, [])


COMPLETE = {
    "python/layerzero/torch/slow_path.py": "from layerzero import _layerzero\nfrom layerzero.contracts import axes\n",
    "python/layerzero/host/log.py": "def late():\n    from layerzero.backends import report\n",
    "python/layerzero/cli/list.py": "from layerzero.inspection import text\n",
    "kernels/norm/rms/hwy.cpp": "",
    "tests/kernels/norm/rms/hwy_test.cpp": "",
    "tests/kernels/norm/rms/hwy_full_test.cpp": "",
    "kernels/launch.h": "",
    "tests/kernels/launch_test.cpp": "",
    "ops/norm/rms.h": "",
    "ops/norm/rms.ref.cpp": "",
    "ops/norm/rms_ref.py": "",
    "ops/common/activation.h": "",
    "tests/ops/norm/rms.cases": "",
}


def test_pairs_accepts_a_complete_tree(tmp_path):
    assert run("check_pairs", write(tmp_path, COMPLETE)) == (0, [])


@pytest.mark.parametrize(
    ("missing", "rule"),
    [
        ("tests/kernels/norm/rms/hwy_test.cpp", "kernel-test"),
        ("ops/norm/rms.h", "operation-parts"),
        ("ops/norm/rms.ref.cpp", "operation-parts"),
        ("ops/norm/rms_ref.py", "operation-parts"),
        ("tests/ops/norm/rms.cases", "operation-parts"),
    ],
)
def test_pairs_names_the_missing_file(tmp_path, missing, rule):
    write(tmp_path, COMPLETE)
    (tmp_path / missing).unlink()
    code, findings = run("check_pairs", tmp_path)
    assert code == 1
    assert any(f["rule"] == rule and missing in f["message"] for f in findings)


def test_pairs_catches_a_test_of_nothing(tmp_path):
    code, findings = run("check_pairs", write(tmp_path, {**COMPLETE, "tests/kernels/norm/rms/old_test.cpp": ""}))
    assert code == 1
    assert findings[0]["rule"] == "stray-test"


# A tree with one promise of each kind, all of them kept.
KEPT = {
    "src/policy/keys.cpp": 'constexpr auto kKeys = std::to_array<PolicyKey>({\n    Bool("enabled", "true", "text"),\n});\n',
    "src/policy/policy.cpp": '    set("enabled", policy.enabled);\n',
    "src/pipeline/filter.cpp": "  if (!policy.enabled) return;\n  Refuse(ReasonCode::kSmTooOld);\n",
    "src/core/reason.cpp": 'constexpr auto kInfos = {{\n    {"AUTO", "", ""},\n    {"SM_TOO_OLD", "cause", "fix"},\n}};\n',
    "src/registry/fact_table.h": 'constexpr auto kFacts = {\n    {"min_sm", FactUse::kRule, "text"},\n});\n',
    "src/registry/descriptor_facts.cpp": '  Number("min_sm");\n',
    "tests/python/test_reasons.py": 'RULES = {\n    "SM_TOO_OLD": Rule(min_sm=80),\n}\n',
    "tests/python/test_policy.py": "def test_enabled():\n    configure(enabled=False)  # proves: enabled\n",
}


def test_promises_accepts_a_tree_that_keeps_them(tmp_path):
    assert run("check_promises", write(tmp_path, KEPT)) == (0, [])


@pytest.mark.parametrize(
    ("file", "old", "new", "rule", "name"),
    [
        ("src/policy/keys.cpp", "});", '    Int("jit.queue", "1", 1, 9, "text"),\n});', "unread", "jit.queue"),
        ("src/pipeline/filter.cpp", "!policy.enabled", "!spec.enabled", "unread", "enabled"),
        ("src/pipeline/filter.cpp", "  if (!policy.enabled)", "  // policy.enabled", "unread", "enabled"),
        ("src/pipeline/filter.cpp", "kSmTooOld", "kSmTooNew", "unread", "SM_TOO_OLD"),
        ("src/pipeline/filter.cpp", "Refuse(", "return code == ", "unread", "SM_TOO_OLD"),
        ("src/registry/descriptor_facts.cpp", "min_sm", "max_sm", "unread", "min_sm"),
        ("tests/python/test_policy.py", "proves: enabled", "proves: enabled_too", "unproven", "enabled"),
        ("tests/python/test_reasons.py", "SM_TOO_OLD", "SM_TOO_NEW", "unproven", "SM_TOO_OLD"),
        ("tests/python/test_reasons.py", "min_sm", "max_sm", "unproven", "min_sm"),
        ("src/core/reason.cpp", "kInfos", "kTexts", "no-table", "reason code"),
    ],
)
def test_promises_catches(tmp_path, file, old, new, rule, name):
    files = {**KEPT, file: KEPT[file].replace(old, new)}
    code, findings = run("check_promises", write(tmp_path, files))
    assert code == 1 and [f for f in findings if f["rule"] == rule and name in f["message"]], findings


@pytest.mark.parametrize(
    ("file", "lines", "code"),
    [("src/base/a.h", 250, 0), ("src/base/a.h", 251, 1), ("ops/a.ref.cpp", 500, 0), ("ops/a.ref.cpp", 501, 1)],
)
def test_sizes(tmp_path, file, lines, code):
    assert run("check_sizes", write(tmp_path, {file: "\n" * lines}))[0] == code


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "`src/core/kernel.h`, `kernel.h`, `core/*.h`, `src/{core,base}/`, `KernelSpec`, `lz::KernelSpec`, `f(x, y)`",
            None,
        ),
        ("```\n`src/core/gone.h`\n```", None),
        ("see `src/core/gone.h`", "paths"),
        ("see `gone.h`", "paths"),
        ("see `src/{core,gone}/`", "paths"),
        ("see `src/core/*.cu`", "paths"),
        ("see `GemmSpec`", "names"),
        ("see `KernelSpec::gone`", "names"),
        ("see `ker_nel()`", "names"),
    ],
)
def test_names_in_pages(tmp_path, text, rule):
    tree = {"src/core/kernel.h": "namespace lz { struct KernelSpec {}; }", "src/base/a.h": ""}
    code, findings = run("check_paths", write(tmp_path, {**tree, "docs/design/0001.md": text + "\n"}))
    assert [f["rule"] for f in findings] == ([rule] if rule else []) and code == (rule is not None)


@pytest.mark.parametrize(
    "phrase", ["it lies beside the other", "an id that stands for a kernel", "is told by its bits"]
)
def test_phrases_in_design_pages(tmp_path, phrase):
    assert run("check_words", write(tmp_path, {"docs/design/0001.md": f"Text: {phrase}.\n"}))[0] == 1


def test_an_empty_tree_is_not_a_pass(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/check_sizes.py"), "--root", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


@pytest.mark.parametrize("check", ["check_layers", "check_paths", "check_promises", "check_sizes", "check_words"])
def test_this_repository_is_clean(check):
    assert run(check, ROOT) == (0, [])
