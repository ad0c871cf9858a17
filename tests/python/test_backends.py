"""Kernels of libraries: tried before a first choice, and refused with the reason where they do not work."""

import ast
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from layerzero import backends  # noqa: E402
from layerzero.backends import proof, references, report  # noqa: E402
from layerzero.backends.flash_attn import packed  # noqa: E402
from planted_library import BINDINGS, OWN, WORKS, W, X, descriptor  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent
library = planted_library.library


def chosen(**policy):
    with lz.policy(**policy):
        return lz.which("rms_norm", X, W)["kernel_id"]


def reasons(name):
    report = lz.explain("rms_norm", X, W)
    return next(c.reasons for c in report.candidates if c.kernel_id == f"{name}.norm")


def test_a_library_is_imported_when_a_call_first_takes_its_kernel(library):
    name = library(WORKS)
    lz.swiglu(X, X)
    lz.rms_norm(X.bfloat16(), W.bfloat16())  # not by its rows
    assert name not in sys.modules
    assert next(k for k in lz.list_kernels() if k.source == name).usable is None
    lz.rms_norm(X, W, kernel=OWN)
    assert name not in sys.modules
    torch.testing.assert_close(lz.rms_norm(X, W), torch.nn.functional.rms_norm(X, (32,), W, 1e-6))
    assert sys.modules[name].calls == [1] and chosen() == f"{name}.norm"
    assert next(k for k in lz.list_kernels() if k.source == name).usable is True


def test_a_simulated_device_imports_nothing(library):
    name = library(WORKS)
    report = lz.explain("rms_norm", X, W, device="zen5")
    assert report.kernel_id == f"{name}.norm" and name not in sys.modules


BROKEN = {
    "import error": ("raise ImportError('libfoo.so.3: cannot open shared object file')", None, "libfoo.so.3"),
    "any error": ("1 / 0", None, "ZeroDivisionError"),
    "syntax": ("def rms_norm(:", None, "SyntaxError"),
    "exit": ("raise SystemExit(3)", None, "SystemExit: 3"),
    "of its own": ("class Stop(BaseException): pass\nraise Stop('here')", None, "Stop: here"),
    "no function": ("x = 1", None, "has no attribute 'rms_norm'"),
    "no callable": ("rms_norm = 1", None, "wanted a function, got int"),
    "no probe": (WORKS, "check", "has no attribute 'check'"),
    "probe": (WORKS + "def check(): raise ArithmeticError('3 wrong of 8')", "check", "ArithmeticError: 3 wrong of 8"),
    "probe exits": (WORKS + "def check(): raise SystemExit('bye')", "check", "SystemExit: bye"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_library_that_does_not_work_is_refused_with_its_error(library, case):
    source, probe, message = BROKEN[case]
    name = library(f"import builtins\nbuiltins.lz_imports = getattr(builtins, 'lz_imports', 0) + 1\n{source}", probe)
    import builtins

    builtins.lz_imports = 0
    for _ in range(3):
        torch.testing.assert_close(lz.rms_norm(X, W), torch.nn.functional.rms_norm(X, (32,), W, 1e-6))
    assert builtins.lz_imports == (0 if case == "syntax" else 1)
    assert chosen() == OWN
    (reason,) = reasons(name)
    assert reason.code == "BACKEND_IMPORT_FAILED" and message in reason.got and name in str(reason)
    ok, why = lz.validate(f"{name}.norm", X, W)
    assert not ok and [r.code for r in why] == ["BACKEND_IMPORT_FAILED"]
    with pytest.raises(lz.NoKernelFoundError) as error:
        lz.rms_norm(X, W, kernel=f"{name}.norm")
    assert error.value.failures[f"{name}.norm"][0].code == "BACKEND_IMPORT_FAILED"
    kernel = next(k for k in lz.list_kernels() if k.source == name)
    assert kernel.installed and kernel.usable is False and message in kernel.detail
    listed = lz.doctor().libraries[name]
    assert not listed.usable and listed.missing[-1]["code"] == "BACKEND_IMPORT_FAILED"
    assert message in listed.missing[-1]["detail"]


def test_reports_try_what_no_call_has_tried(library):
    broken, works = library("1 / 0"), library(WORKS)
    found = {backend["name"]: backend for backend in report.report()}
    assert not found[broken]["usable"] and found[works]["usable"]
    assert found[works]["kernels"] == 1


def test_an_error_is_kept_at_a_bounded_length(library):
    name = library("raise ImportError('x' * 100_000)")
    assert len(reasons(name)[0].got) <= proof.LONGEST_ERROR


WITHOUT_AN_ADAPTER = """
import layerzero as lz
from layerzero import backends
from planted_library import OWN, W, X, descriptor
lz.rms_norm(X, W)
document = descriptor("lz_no_adapter", requires=[])
del document["ops"]["norm.rms"][0]["adapter"]
backends.register(document)
report = lz.explain("rms_norm", X, W)
(refused,) = [c for c in report.candidates if c.kernel_id == "lz_no_adapter.norm"]
assert "without an adapter" in refused.reasons[0].got and report.kernel_id == OWN, report
print("ok")
"""


def test_a_row_without_an_adapter_is_refused():
    # In a process of its own: nothing takes such a row out again, an adapter is what names a kernel to take out.
    path = os.pathsep.join((str(PACKAGE), str(Path(planted_library.__file__).parent)))
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_AN_ADAPTER], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "ok\n", done.stderr


PROBED = (
    WORKS
    + """
import threading, time
probes = []
def check():
    probes.append(threading.get_ident())
    time.sleep(0.3)
"""
)


def test_threads_wait_for_one_probe(library):
    name = library(PROBED, "check")
    start, found = threading.Barrier(8), []

    def call():
        start.wait()
        found.append(lz.which("rms_norm", X, W)["kernel_id"])

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [f"{name}.norm"] * 8 and len(sys.modules[name].probes) == 1


def test_a_probe_may_call_its_own_operation(library):
    source = """
def check():
    global inner
    inner = lz.which("rms_norm", torch.ones(2, 32), torch.ones(32))["kernel_id"]
    lz.rms_norm(torch.ones(2, 32), torch.ones(32))
"""
    name = library(WORKS + source, "check")
    assert chosen() == f"{name}.norm" and sys.modules[name].inner == OWN


def test_a_module_may_call_its_own_operation_while_it_is_imported(library):
    name = library(WORKS + "inner = lz.which('rms_norm', torch.ones(2, 32), torch.ones(32))['kernel_id']")
    assert chosen() == f"{name}.norm" and sys.modules[name].inner == OWN


def test_a_probe_runs_outside_of_the_callers_modes(library):
    source = """
def check():
    assert torch.empty(1).device.type == "cpu" and torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")
"""
    name = library(WORKS + source, "check")
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        assert lz._layerzero.prove_backend(name) == ""


def test_an_interrupt_is_the_users_and_decides_nothing(library):
    name = library(
        WORKS + "import os\nif not os.environ.pop('LZ_INTERRUPTED', ''):\n    pass\nelse:\n    raise KeyboardInterrupt"
    )
    os.environ["LZ_INTERRUPTED"] = "1"
    with pytest.raises(KeyboardInterrupt):
        lz.which("rms_norm", X, W)
        sum(range(1000))
    sys.modules.pop(name, None)
    assert chosen() == f"{name}.norm"


def test_a_thread_that_waits_too_long_goes_on_without(library, monkeypatch):
    name = library(WORKS)
    monkeypatch.setattr(proof, "PATIENCE", 0.05)
    with proof._turn:
        found = []
        thread = threading.Thread(target=lambda: found.append(lz.which("rms_norm", X, W)["kernel_id"]))
        thread.start()
        thread.join()
    assert found == [OWN] and chosen() == f"{name}.norm"


# ---- the other ways to call


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_binding_tries_first(library, binding):
    name = library(WORKS)
    BINDINGS[binding]()
    assert len(sys.modules[name].calls) == 1
    lz._layerzero.unregister(f"{name}:rms_norm")
    broken = library("raise OSError('undefined symbol: _ZN3c10')")
    BINDINGS[binding]()
    assert "undefined symbol" in reasons(broken)[0].got


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="needs two threads")
def test_a_program_imports_on_its_callers_thread(library):
    """Some libraries refuse to be imported by a thread of the pool."""
    for _ in range(8):
        name = library(f"{WORKS}import threading\nhere = threading.get_ident()")
        BINDINGS["program"]()
        assert sys.modules[name].here == threading.get_ident()
        lz._layerzero.unregister(f"{name}:rms_norm")


# ---- descriptors


def shipped():
    """(adapter, whether its library is here) of every row and probe of every descriptor."""
    documents = [json.loads(path.read_text()) for path in backends.FOLDER.glob("*/capabilities.json")]
    for document in [*documents, references.descriptor()]:
        here = backends.availability_of(document)["*"]["installed"]
        templates = document.get("templates", {})
        for row in itertools.chain(*document["ops"].values()):
            yield row.get("adapter") or templates.get(row.get("extends"), {}).get("adapter"), here
        if "probe" in document:
            yield document["probe"], here


def fault(adapter, here):
    """Why an adapter is none; of a library that is not here as far as its module's text shows it."""
    if here:
        return proof.error_of("", (adapter or "",))
    module, _, name = (adapter or "").partition(":")
    spec = importlib.util.find_spec(module) if module else None
    if spec is None:
        return f"{adapter}: no module"
    tree = ast.parse(Path(spec.origin).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    bound = (node.targets for node in tree.body if isinstance(node, ast.Assign))  # adapter = operations.adapter
    names |= {target.id for target in itertools.chain(*bound) if isinstance(target, ast.Name)}
    name, _, method = name.partition(".")  # the methods of FlashAttention's `operations`
    methods = {"", *vars(packed.Operations), *vars(packed.StridedOperations)}
    return "" if name in names and method in methods else f"{adapter}: no function"


def test_every_adapter_of_every_descriptor_is_there():
    adapters = set(shipped())
    assert len(adapters) > 60
    assert [text for text in (fault(*one) for one in sorted(adapters, key=str)) if text] == []


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    "adapter",
    [
        "layerzero.backends.torch.adapters:planted",
        "layerzero.backends.torch.planted:rms_norm",
        "layerzero.backends.zentorch.adapters:planted",
        "layerzero.backends.vllm_fa3.adapters:operations.planted",
        "layerzero.backends.torch.adapters",
        None,
    ],
)
def test_a_planted_adapter_is_found_missing(adapter, here):
    assert fault(adapter, here)


REFUSED = {
    "schema version": ({"schema_version": "2.0"}, "CAPABILITIES_SCHEMA_MISMATCH", "2.0"),
    "unknown key": ({"kernels": 3}, "CAPABILITIES_SCHEMA_MISMATCH", "kernels"),
    "no operations": ({"ops": None}, "CAPABILITIES_SCHEMA_MISMATCH", "ops"),
    "no platform": ({"platform": "abacus"}, "CAPABILITIES_SCHEMA_MISMATCH", "abacus"),
    "bad probe": ({"probe": "nothing"}, "CAPABILITIES_SCHEMA_MISMATCH", "probe"),
    "requires": ({"requires": [{"name": "x"}]}, "CAPABILITIES_SCHEMA_MISMATCH", "requires"),
    "taken id": (
        {"ops": {"norm.rms": [dict(descriptor("x")["ops"]["norm.rms"][0], kernel_id="hwy.norm.rms")]}},
        "CAPABILITIES_SCHEMA_MISMATCH",
        "hwy.norm.rms",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_backend_that_the_engine_refuses_is_listed_with_the_reason(case):
    change, code, text = REFUSED[case]
    lz.rms_norm(X, W)
    backends._try("planted", lambda: descriptor("lz_refused") | change)
    try:
        (found,) = [b for b in report.report() if b["name"] == "lz_refused"]
        assert not found["usable"] and not found["installed"] and found["kernels"] == 0 and found["operations"] == []
        (item,) = found["missing"]
        assert item["code"] == code and text in item["detail"] and item["fix"] is None
        assert any("planted" in problem and text in problem for problem in lz.doctor().problems)
    finally:
        backends._problems.pop("planted")
        backends._libraries.pop("lz_refused")


@pytest.mark.parametrize("document", [{}, [], {"backend": "torch"}, {"backend": 3}], ids=str)
def test_a_document_that_is_no_descriptor_leaves_others_alone(document):
    lz.rms_norm(X, W)
    backends._try("planted", lambda: document)
    try:
        found = {b["name"]: b for b in report.report()}
        assert not found["planted"]["usable"] and found["torch"]["usable"]
    finally:
        backends._problems.pop("planted")
        backends._libraries.pop("planted")


POINTS = """
import json, sys
import torch
import layerzero as lz
from layerzero import _layerzero, backends
named = lambda: {k["source"] for k in json.loads(_layerzero.kernels(None, False))}
assert lz.torch.attach.attached() and not {"lz_file", "lz_code"} & set(sys.modules), "imported at attach"
assert "lz_file" in named() and "lz_code" not in named()
lz.swiglu(torch.ones(2, 8), torch.ones(2, 8))
assert "lz_code" in named() and "lz_file" not in sys.modules
assert list(backends.problems()) == [], list(backends.problems())
kernel = lz.which("rms_norm", torch.ones(2, 8), torch.ones(8))["kernel_id"]
assert kernel == "lz_file.norm" and "lz_file.kernels" in sys.modules, kernel
print("ok")
"""


def test_entry_points_are_not_imported_before_a_call(tmp_path):
    file = descriptor("lz_file")
    file["ops"]["norm.rms"][0]["adapter"] = "lz_file.kernels:rms_norm"
    code = descriptor("lz_code")
    code["ops"]["norm.rms"][0]["priority"] = 1
    for folder in ("lz_file/kernels", "lz_code", "lz-1.dist-info"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "lz_file/__init__.py").touch()
    (tmp_path / "lz_file/kernels/__init__.py").write_text(WORKS)
    (tmp_path / "lz_file/kernels/capabilities.json").write_text(json.dumps(file))
    (tmp_path / "lz_code/__init__.py").write_text(WORKS + f"def describe(): return {code!r}")
    (tmp_path / "lz-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lz\nVersion: 1\n")
    (tmp_path / "lz-1.dist-info/entry_points.txt").write_text(
        "[layerzero.backends]\nfile = lz_file.kernels:capabilities.json\ncode = lz_code:describe\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(PACKAGE)))}
    done = subprocess.run([sys.executable, "-c", POINTS], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ok\n", done.stderr
