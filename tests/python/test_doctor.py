"""`layerzero doctor` and `backends` without a GPU, with one, and with drivers that are broken in the ways that happen."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import layerzero as lz
import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

from layerzero import backends  # noqa: E402
from layerzero.backends import availability, report  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).parent / "support/fake_libcuda.c"
PACKAGE = Path(lz.__file__).parent.parent
COMPILER = shutil.which("cc") or shutil.which("gcc")
fakes = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders with a libcuda.so.1 each: one that works, one without functions, one that is no library."""
    base = tmp_path_factory.mktemp("drivers")
    for name, sources in (("works", [SOURCE]), ("old", ["-x", "c", os.devnull])):
        (base / name).mkdir()
        command = [COMPILER, "-shared", "-fPIC", "-w", *sources, "-o", base / name / "libcuda.so.1"]
        subprocess.run(command, check=True)
    (base / "torn").mkdir()
    (base / "torn/libcuda.so.1").write_bytes(b"\x7fELF")
    return base


# Several commands in one process: (exit code, output) of each.
COMMANDS = """
import contextlib, io, json, sys
from layerzero import cli
answers = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        answers.append((cli.run(arguments), out.getvalue()))
print(json.dumps(answers))
"""


def layerzero(*commands, driver=None, **environment):
    """(exit code, output) of each command, in a process whose loader finds `driver` first."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE)} | environment
    env.pop("CUDA_VISIBLE_DEVICES", None)
    if driver:
        env["LD_LIBRARY_PATH"] = f"{driver}:{env.get('LD_LIBRARY_PATH', '')}"
    arguments = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


def doctor(driver=None, **environment):
    commands = (["doctor"], ["doctor", "--json"])
    (code, text), (json_code, document) = layerzero(*commands, driver=driver, **environment)
    assert code == json_code
    return code, text, json.loads(document)


def missing(document, library):
    return {item["what"]: item for item in document["libraries"][library]["missing"]}


def has_driver():
    return "libcuda.so.1 was not found" not in lz.doctor().devices.why_no_cuda


def test_without_a_gpu():
    if has_driver():
        pytest.skip("this machine has a driver")
    code, text, document = doctor()
    assert code == 0 and document["ok"]  # a machine without a GPU is not ill
    assert "no CUDA device: no NVIDIA driver: libcuda.so.1 was not found" in text and text.rstrip().endswith("ok")
    assert [d["platform"] for d in document["devices"]["devices"]] == ["cpu"]
    assert document["libraries"]["layerzero.cpu"]["usable"] and document["libraries"]["torch"]["usable"]
    own = document["libraries"]["layerzero.cuda"]
    assert "a CUDA device" in missing(document, "layerzero.cuda") and not own["usable"]
    fix = 'pip install --no-deps "zentorch>=2.13,<2.14" deprecated wrapt'
    absent = missing(document, "zentorch")["zentorch"]
    assert absent["fix"] == fix and absent["code"] == "NOT_INSTALLED" and fix in text


@fakes
def test_with_one(folder):
    code, text, document = doctor(folder / "works", FAKE_CUDA_DEVICES="1")
    assert code == 0 and document["devices"]["why_no_cuda"] == ""
    (device,) = [d for d in document["devices"]["devices"] if d["platform"] == "cuda"]
    assert device["name"] == "cuda:0" and device["model"] == "NVIDIA Fake 90" and device["facts"]["sm"] == 90
    assert "NVIDIA Fake 90" in text and "sm_90, " in text and "no CUDA device" not in text
    assert all("a CUDA device" not in missing(document, name) for name in document["libraries"])
    own = document["libraries"]["layerzero.cuda"]
    assert own["usable"] == (document["devices"]["cuda_library"] == "loaded")


BROKEN = {
    "driver and kernel module differ": (
        "works",
        {"FAKE_CUDA_INIT": "803"},
        "unsupported display driver",
        "nvidia-smi",
    ),
    "no device": (
        "works",
        {"FAKE_CUDA_INIT": "100"},
        "no CUDA-capable device",
        "unset CUDA_VISIBLE_DEVICES; nvidia-smi --list-gpus",
    ),
    "a driver that shows none": (
        "works",
        {"FAKE_CUDA_DEVICES": "0"},
        "shows no device",
        "unset CUDA_VISIBLE_DEVICES; nvidia-smi --list-gpus",
    ),
    "too old": ("old", {}, "lacks functions", "sudo apt-get install --reinstall nvidia-driver"),
    "torn file": ("torn", {}, "does not load", "sudo apt-get install --reinstall nvidia-driver"),
}


@fakes
@pytest.mark.parametrize("case", BROKEN)
def test_with_a_broken_driver(folder, case):
    driver, environment, why, fix = BROKEN[case]
    code, text, document = doctor(folder / driver, **environment)
    assert code == 0  # the CPU works; what is broken is said
    assert why in document["devices"]["why_no_cuda"] and why in text and fix in text
    item = missing(document, "layerzero.cuda")["a CUDA device"]
    assert why in item["detail"] and item["fix"] == fix
    assert [d["platform"] for d in document["devices"]["devices"]] == ["cpu"]


@fakes
def test_a_broken_driver_breaks_no_call(folder):
    call = ["which", "rms_norm", "--input", "f32[2,8]", "--weight", "f32[8]"]
    ((code, text),) = layerzero(call, driver=folder / "works", FAKE_CUDA_INIT="803")
    assert code == 0 and text.strip() == "hwy.norm.rms"


@pytest.mark.parametrize(
    ("vendors", "fix"), [(["0x8086"], None), (["0x8086", "0x10de"], "nvidia-driver"), ([], "nvidia-driver")]
)
def test_a_driver_is_proposed_where_there_may_be_a_device(tmp_path, monkeypatch, vendors, fix):
    for number, vendor in enumerate(vendors):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(vendor + "\n")
    monkeypatch.setattr(report, "PCI", tmp_path)
    item = report.device_missing({"why_no_cuda": "no NVIDIA driver: libcuda.so.1 was not found"})
    assert item["fix"] is None if fix is None else fix in item["fix"]
    assert report.device_missing({"why_no_cuda": ""}) is None


def test_own_cuda_kernels_that_are_not_built_or_do_not_load():
    for state, detail in (("none", "nvcc was not found"), ("of another build", "of another build")):
        (item,) = report._own("layerzero.cuda", {"cuda_library": state}, [])["missing"]
        assert detail in item["detail"] and item["fix"] == "make build"


def test_missing_says_what_installs_it():
    absent = {"import": "no_such_module_of_ours", "distribution": "ours", "min_version": "2", "below_version": "3"}
    (item,) = availability.missing([absent])
    assert item == {
        "what": "ours",
        "detail": "module no_such_module_of_ours is not installed",
        "fix": 'pip install "ours>=2,<3"',
        "code": "NOT_INSTALLED",
    }
    (item,) = availability.missing([absent | {"install": "make ours"}])
    assert item["fix"] == "make ours"
    (old,) = availability.missing([{"import": "torch", "distribution": "torch", "min_version": "99"}])
    assert "older than 99" in old["detail"] and old["fix"] == 'pip install "torch>=99"'
    assert availability.missing([{"import": "json"}]) == []


def test_every_library_that_is_absent_says_how_to_get_it():
    for backend in report.report():
        for item in backend["missing"]:
            assert item["what"] and item["detail"], backend["name"]
            assert item["fix"] or item["what"] == "a CUDA device", backend["name"]


def test_backends_say_no_where_one_is_ill(monkeypatch, capsys):
    from layerzero import cli

    assert cli.run(["backends"]) == 0 and "torch.ref" in capsys.readouterr().out
    monkeypatch.setitem(backends._problems, "sick", "sick: CAPABILITIES_SCHEMA_MISMATCH")
    assert cli.run(["backends"]) == 1 and "problem: sick" in capsys.readouterr().out
    assert cli.run(["doctor"]) == 1


def test_more_threads_than_the_process_may_use_are_named(monkeypatch):
    threads = lz.doctor().threads
    assert threads.usable >= 1 and threads.advice is None
    monkeypatch.setattr(lz._layerzero, "usable_cpus", lambda: threads.torch - 1 or 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)
    usable = lz._layerzero.usable_cpus()
    advice = lz.doctor().threads.advice
    assert "torch has 16 threads" in advice and f"OMP_NUM_THREADS={usable}" in advice
    assert lz.doctor().ok  # advice, not a problem


COUNTED = """
import torch, layerzero as lz
before = lz.doctor().counters.measured_records
lz.rms_norm(torch.ones(2, 8), torch.ones(8))
print(before, lz.doctor().counters.measured_records)
"""


def test_measured_records_are_counted_before_a_first_call_too(tmp_path):
    records = json.loads((ROOT / "devices/priors/amd-epyc-avx2-2c.json").read_text())
    for record in records["records"]:
        record["device_id"] = lz._layerzero.device_id("cpu")
    (tmp_path / "prior.records.json").write_text(json.dumps(records))
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COUNTED], env=env, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after and int(before) > 0


def test_what_would_help_is_for_this_machine_and_the_best_comes_first():
    from layerzero.inspection.doctor_text import doctor_text

    report = lz.doctor().to_dict()
    library = {"version": None, "installed": False, "usable": False, "kernels": 3, "tested_with": "1"}
    missing = {"detail": "not there", "code": "NOT_INSTALLED"}
    for name, platform in (("elsewhere", "rocm"), ("here", "cpu")):
        item = {**missing, "what": name, "fix": f"pip install {name}"}
        report["libraries"][name] = {**library, "platform": platform, "missing": [item]}
    report["packages"][0] |= {"version": None, "in_range": False, "fix": "pip install it"}
    text = doctor_text(report)
    assert "pip install here" in text and "pip install it" in text and "pip install elsewhere" not in text
    assert "For other devices than this machine's:" in text and "elsewhere" in text
    assert text.index("Devices") < text.index("can run on") < text.index("Would help here")
