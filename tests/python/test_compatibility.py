"""Which builds of libraries run together: read from files, refused before an import, shown by doctor."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("torch")

from layerzero.backends import FOLDER, compatibility, runtime, shared_objects  # noqa: E402
from layerzero.backends.runtime import Runtime  # noqa: E402
from layerzero.host import optional  # noqa: E402

PACKAGE = Path(lz.__file__).parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


def compile_library(path, source="int lz_here;", *flags):
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", path, *flags], input=source, text=True, check=True
    )
    return path


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory):
    """A folder with empty libraries named as CUDA's."""
    folder = tmp_path_factory.mktemp("runtimes")
    for name in ("libcudart.so.12", "libcudart.so.13", "libnvrtc.so.13", "libamdhip64.so.7"):
        compile_library(folder / name, "int lz_runtime;", f"-Wl,-soname,{name}")
    return folder


@pytest.fixture
def library(tmp_path, runtimes, monkeypatch):
    """Makes a package whose extension links what is named, next to a marker that its import leaves."""

    def make(name, *links):
        folder = tmp_path / name
        folder.mkdir()
        folder.joinpath("__init__.py").write_text(f"open({str(folder / 'imported')!r}, 'w').close()\n")
        if links is not None:
            needed = [f"-l:{link}" for link in links]
            compile_library(folder / "_C.abi3.so", "int lz_c;", "-Wl,--no-as-needed", f"-L{runtimes}", *needed)
        return folder

    monkeypatch.syspath_prepend(str(tmp_path))
    return make


@needs_compiler
def test_links_are_read_from_the_file(library):
    folder = library("lz_links", "libcudart.so.12", "libnvrtc.so.13")
    assert {"libcudart.so.12", "libnvrtc.so.13"} <= set(shared_objects.libraries_of(folder / "_C.abi3.so"))
    assert compatibility.links("lz_links") == {("CUDA", 12), ("CUDA", 13)}
    assert not (folder / "imported").exists()
    library("lz_rocm", "libamdhip64.so.7")
    assert compatibility.links("lz_rocm") == {("ROCm", 7)}


@needs_compiler
def test_damaged_files_link_nothing(library):
    whole = (library("lz_damaged", "libcudart.so.12") / "_C.abi3.so").read_bytes()
    path = Path(sys.path[0], "lz_damaged", "torn.so")
    for size in [*range(0, 800, 7), *range(800, len(whole), 997)]:
        path.write_bytes(whole[:size])
        assert set(shared_objects.libraries_of(path)) <= {"libcudart.so.12", "libc.so.6", ""}
        assert shared_objects.cuda_code(path) == frozenset()
    path.write_bytes(b"text, no library")
    assert shared_objects.libraries_of(path) == () and shared_objects.libraries_of(path.parent / "absent.so") == ()


def container(*entries):
    """CUDA code as nvcc stores it: a header, then an entry for each (kind, architecture) with 24 bytes of data."""
    data = b"".join(struct.pack("<HHIQ12xI32x24x", kind, 0, 64, 24, of) for kind, of in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(data)) + data


@needs_compiler
def test_cuda_code_is_read_from_the_file(tmp_path):
    data = container((2, 80), (2, 90)) + b"\0" * 8 + container((1, 90), (2, 100))
    text = ", ".join(map(str, data))
    source = f'__attribute__((section(".nv_fatbin"), used)) static const unsigned char lz_code[] = {{{text}}};'
    path = compile_library(tmp_path / "code.so", source)
    assert shared_objects.cuda_code(path) == {("sm", 80), ("sm", 90), ("compute", 90), ("sm", 100)}


def test_own_cuda_kernels_hold_code_for_what_they_name():
    path = PACKAGE / "liblayerzero_cuda.so"
    if not path.exists():
        pytest.skip("built without CUDA kernels")
    assert ("sm", 90) in shared_objects.cuda_code(path)


REFUSED = """
import json, sys, torch, layerzero as lz
from layerzero import backends
torch.version.cuda = {cuda!r}
row = {{"kernel_id": "lz_built.norm", "adapter": "lz_built:norm", "dtypes": ["float32"], "requires_layouts": ["any"],
       "accepts": ["weight"], "priority": 100}}
backends.register({{"schema_version": "1.0", "backend": "lz_built", "backend_version": "1", "platform": "cpu",
                   "requires": [{{"import": "lz_built"}}], "ops": {{"norm.rms": [row]}}}})
report = lz.explain("rms_norm", torch.ones(2, 8), torch.ones(8))
reasons = [r for c in report.candidates if c.kernel_id == "lz_built.norm" for r in c.reasons]
state = lz.doctor().to_dict()["libraries"]["lz_built"]["compatibility"]
print(json.dumps([report.kernel_id, [[r.code, r.message] for r in reasons], state]))
"""


@needs_compiler
@pytest.mark.parametrize(("cuda", "runs"), [("13.0", False), ("12.8", True), (None, True)])
def test_another_cuda_is_refused_before_the_import(library, cuda, runs):
    folder = library("lz_built", "libcudart.so.12")
    with (folder / "__init__.py").open("a") as file:
        file.write("import torch\ndef norm(input, weight, eps, weight_offset=None):\n")
        file.write("    return torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)\n")
    env = os.environ | {"PYTHONPATH": f"{PACKAGE.parent}:{folder.parent}"}
    done = subprocess.run(
        [sys.executable, "-c", REFUSED.format(cuda=cuda)], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    chosen, reasons, state = json.loads(done.stdout.splitlines()[-1])
    assert (folder / "imported").exists() == runs
    assert (chosen == "lz_built.norm") == runs
    assert state["built_for"] == ["CUDA 12"]
    if runs:
        assert state["state"] == "expected" and reasons == []
    else:
        assert state["state"] == "refused" and [code for code, _ in reasons] == ["BACKEND_IMPORT_FAILED"]
        assert "lz_built is built for CUDA 12, and this process uses CUDA 13" in reasons[0][1]


@needs_compiler
def test_a_library_with_a_build_for_each_runs(library, monkeypatch):
    library("lz_both", "libcudart.so.12", "libcudart.so.13")
    library("lz_static")
    for major in (12, 13):
        monkeypatch.setattr(runtime, "of_process", lambda major=major: Runtime("CUDA", major, "torch"))
        assert compatibility.refusal([{"import": "lz_both"}]) == "" == compatibility.refusal([{"import": "lz_static"}])
    monkeypatch.setattr(runtime, "of_process", lambda: Runtime("ROCm", 7, "torch"))
    assert "ROCm 7" in compatibility.refusal([{"import": "lz_both"}])


def test_the_runtime_of_torch_on_disk_is_that_of_torch_loaded(monkeypatch):
    import torch

    on_disk, text = runtime._of_torch_on_disk()
    assert (on_disk["CUDA"], on_disk["ROCm"], text) == (torch.version.cuda, torch.version.hip, torch.__version__)
    monkeypatch.setattr(torch.version, "cuda", "12.6")
    assert runtime.of_process()[:2] == ("CUDA", 12)


DEVICES = {"devices": [{"platform": "cuda", "simulated": False, "facts": {"sm": 90, "cuda_version": 13000}}]}


def record(**changes):
    missing = [{"what": "x", "detail": why, "fix": None, "code": code} for why, code in changes.pop("missing", [])]
    plain = {"version": "1.2", "tested_with": "1.0", "installed": True, "platform": "cuda", "missing": missing}
    return plain | changes


def test_states(monkeypatch):
    rows = ({"version": "1.2", "torch": "2.11", "cuda": 13, "sm": [90], "by": "cases on a device"},)
    monkeypatch.setattr(compatibility, "tested", lambda name: rows)
    monkeypatch.setattr(runtime, "of_process", lambda: Runtime("CUDA", 13, "torch"))
    monkeypatch.setattr(
        compatibility.Here,
        "of",
        lambda devices: compatibility.Here("2.11.0+cu130", runtime.of_process(), frozenset({90}), 13000),
    )

    def state(**changes):
        found = compatibility.state("ours", record(**changes), [], DEVICES)
        return found["state"], found["why"]

    assert state() == ("tested", "cases on a device")
    assert state(version="1.3")[0] == "expected"
    assert state(missing=[("its probe failed", "BACKEND_IMPORT_FAILED")]) == ("refused", "its probe failed")
    old = record(version="0.9", installed=False, missing=[("0.9 is older than 1", "NOT_INSTALLED")])
    assert compatibility.state("ours", old, [], DEVICES)["state"] == "refused"
    absent = record(version=None, installed=False, missing=[("not installed", "NOT_INSTALLED")])
    assert compatibility.state("ours", absent, [], DEVICES)["state"] == "absent"


@pytest.mark.parametrize(
    ("code", "driver", "wanted"),
    [
        ([("sm", 90)], 13000, ""),
        ([("sm", 80)], 13000, "the device is sm_90"),
        ([("sm", 86), ("compute", 80)], 13000, ""),
        ([("sm", 100), ("compute", 100)], 13000, "sm_100"),
        ([], 13000, ""),
        ([], 12040, "the driver has CUDA 12.4"),
    ],
)
def test_what_does_not_fit_the_device(monkeypatch, code, driver, wanted):
    monkeypatch.setattr(compatibility, "codes", lambda requirements: code)
    monkeypatch.setattr(compatibility, "links_of", lambda requirements: frozenset({("CUDA", 13)}))
    facts = {"sm": 90, "cuda_version": driver}
    devices = {"devices": [{"platform": "cuda", "simulated": False, "facts": facts}]}
    found = "; ".join(compatibility.misfits([{"import": "x"}], devices))
    assert wanted in found and bool(found) == bool(wanted)


def test_what_a_wheel_declares(monkeypatch):
    declared = ["torch==2.10.0", "numpy>=1; extra == 'x'", "triton (>=3,<4)", "absent==1", "ours~=1.4"]
    monkeypatch.setattr(compatibility.metadata, "requires", lambda name: declared)
    versions = {"torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "0.1", "ours": "1.5.2"}
    monkeypatch.setattr(compatibility.optional, "version_of", versions.get)
    assert compatibility.unmet_pins("any") == ["declares torch==2.10.0, installed is 2.11.0+cu130"]


@pytest.mark.parametrize(
    ("wanted", "meets"),
    [
        ("==2.11", True),
        ("==2.11.*", True),
        ("==2.10.*", False),
        (">=2.12", False),
        ("!=2.11", False),
        ("~=2.9", True),
        ("<3,>=2", True),
    ],
)
def test_ranges(wanted, meets):
    assert optional.meets("2.11.0+cu130", wanted) == meets


def test_tested_combinations_are_of_shipped_backends():
    for path in sorted(FOLDER.glob("*/tested.json")):
        assert (path.parent / "capabilities.json").exists()
        for row in json.loads(path.read_text()):
            assert set(row) == {"version", "torch", "cuda", "sm", "by"}, path
            assert row["by"] and (row["cuda"] is None) == (row["sm"] == [])


def test_every_library_has_a_state():
    for name, library in lz.doctor().libraries.items():
        about = library["compatibility"]
        assert about["state"] in ("tested", "expected", "refused", "absent") and about["why"], name
        assert library["usable"] == (about["state"] in ("tested", "expected")), name
        assert not library["usable"] or not [i for i in about["issues"] if i["severity"] == "error"]


def test_the_libraries_that_serve_an_operation_together():
    from layerzero.backends.report import report, serving

    found = report()
    names = [one["name"] for one in serving(found, ["rms_norm"])]
    assert "layerzero.cpu" in names and "torch.ref" in names
    assert not {one["name"] for one in found if not one["usable"]} & set(names)
    assert "layerzero.cpu" not in [one["name"] for one in serving(found, [])]
    cpu = next(one for one in found if one["name"] == "layerzero.cpu")
    assert (
        serving([cpu | {"usable": False}], ["rms_norm"])
        == []
        == serving([cpu | {"operations": ["kv.gather"]}], ["rms_norm"])
    )


# ---- policy keys

LOADED = """
import json, sys, warnings, torch, layerzero as lz
from layerzero import backends
lz.configure(**json.loads(sys.argv[1]))
torch.version.cuda = "13.0"
row = {"kernel_id": "lz_built.norm", "adapter": "lz_built:norm", "dtypes": ["float32"], "requires_layouts": ["any"],
       "accepts": ["weight"], "priority": 100}
backends.register({"schema_version": "1.0", "backend": "lz_built", "backend_version": "1", "platform": "cpu",
                   "requires": [{"import": "lz_built"}], "ops": {"norm.rms": [row]}})
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report = lz.explain("rms_norm", torch.ones(2, 8), torch.ones(8))
reasons = [r for c in report.candidates if c.kernel_id == "lz_built.norm" for r in c.reasons]
print(json.dumps([" ".join(r.message for r in reasons), [str(w.message) for w in caught
                  if issubclass(w.category, lz.LayerZeroCompatibilityWarning)], "lz_built" in sys.modules]))
"""


def loaded(folder, **keys):
    """(reasons, warnings, whether it was imported) of a library in a process with these keys of the policy."""
    env = os.environ | {"PYTHONPATH": f"{PACKAGE.parent}:{folder.parent}"}
    keys = {"cache_dir": str(folder.parent / "cache"), "isolation": {"try_imports": False}, "compatibility": keys}
    command = [sys.executable, "-c", LOADED, json.dumps(keys)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_compiler
def test_the_policy_decides_about_a_build_that_does_not_fit(library):
    # proves: compatibility.check_at_load
    # proves: compatibility.fail_on_incompatible
    folder = library("lz_built", "libcudart.so.12")
    (folder / "__init__.py").write_text("def norm(input, weight, eps):\n    return input\n")
    reasons, warned, imported = loaded(folder)
    assert "built for CUDA 12" in reasons and not warned and not imported
    reasons, warned, imported = loaded(folder, fail_on_incompatible=False)
    assert not reasons and "lz_built: lz_built is built for CUDA 12" in warned[0] and imported
    assert loaded(folder, check_at_load=False) == ["", [], True]


def matrix_file(path, *rows):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"version": 1, "rows": [{"backend": "lz_built", **row} for row in rows]}))
    return str(path)


@needs_compiler
def test_the_matrix_refuses_what_failed(library, tmp_path):  # proves: compatibility.matrix_path
    folder = library("lz_built")
    (folder / "__init__.py").write_text("def norm(input, weight, eps):\n    return input\n")
    failed = {"result": "failed", "by": "wrong in the fleet's tests"}
    of_torch = ".".join(torch_version())
    for row, refused in (
        (failed, True),
        (failed | {"torch": of_torch}, True),
        (failed | {"torch": "1.13"}, False),
        (failed | {"with": {"torch": ">=2"}}, True),  # a conflict with another package
        (failed | {"with": {"torch": "<2"}}, False),
        (failed | {"cuda": 12}, False),
        (failed | {"library": "3.0"}, False),
        ({"result": "passed", "by": "tests"}, False),
    ):
        path = matrix_file(tmp_path / "fleet.json", row)
        reasons, _, imported = loaded(folder, matrix_path=path)
        assert ("wrong in the fleet's tests" in reasons, imported) == (refused, not refused), row
    matrix_file(tmp_path / "cache" / "compat_matrix.json", failed)  # its place without the key
    assert "wrong in the fleet's tests" in loaded(folder)[0]
    (tmp_path / "cache" / "compat_matrix.json").write_text("{}")
    reasons, _, imported = loaded(folder)
    assert 'wanted {"version": 1, "rows": [...]}' in reasons and not imported


def torch_version():
    import torch

    return torch.__version__.split(".")[:2]


def test_the_matrix_is_written_and_says_what_was_tested(tmp_path):
    before = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path))
    try:
        here = compatibility.Here.of({"devices": []})
        issues = {"issues": [{"severity": "error", "backend": "b", "reason": "it broke"}]}
        about = {"tried": True, "installed": True, "version": "1.2", "compatibility": {"issues": []}}
        records = [{"name": "a", **about}, {"name": "b", **about, "compatibility": issues}]
        records += [{"name": "c", **about, "tried": False}]
        for _ in range(2):  # the second time replaces the first one's rows
            compatibility.write_matrix(records)
        rows = {row["backend"]: row for row in compatibility.matrix.rows()}
        assert len(compatibility.matrix.rows()) == 2 and rows["a"]["result"] == "passed"
        assert (rows["b"]["result"], rows["b"]["by"]) == ("failed", "it broke")
        assert compatibility.matrix.verdict("a", "1.2.3", here)["by"].startswith("its probe, layerzero")
        assert compatibility.matrix.verdict("a", "1.3", here) is None
    finally:
        lz.configure(cache_dir=before)
