"""Options that every command has with one meaning, and what commands import."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero import cli  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent
COMMANDS = [module.name.split("_", 1) for module in pkgutil.iter_modules(cli.__path__) if module.name[0] != "_"]
NORM = ["rms_norm", "--input", "f32[4,576]", "--weight", "f32[576]"]
QUERY = ["attention", "--query", "bf16[1,16,4,64]", "--key", "bf16[1,16,4,64]", "--value", "bf16[1,16,4,64]"]


def command_line(*arguments):
    """Of a process of its own: exit code, standard output, standard error."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, "-m", "layerzero", *arguments], env=env, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_them(command, capfd):
    assert cli.run([*command, "--help"]) == 0
    shown = " ".join(capfd.readouterr().out.replace("│", " ").split())
    for option, meaning in (
        ("--json", "print JSON"),
        ("-q", "write only errors to standard error"),
        ("-v", "show everything, nothing grouped or left out"),
    ):
        assert option in shown and meaning in shown, (option, shown)


@pytest.mark.parametrize("command", [["list"], ["which", *NORM], ["policy", "show"]], ids=lambda words: words[0])
def test_verbose_says_how_long_it_took_and_quiet_says_nothing(command, capfd):
    assert cli.run([*command, "-v", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) and err.startswith("layerzero: ") and err.count("\n") == 1
    assert cli.run([*command, "-q"]) == 0
    out, err = capfd.readouterr()
    assert out and err == ""
    assert cli.run([*command, "-q", "-v"]) == 2 and "--quiet or --verbose" in capfd.readouterr().err


def test_quiet_keeps_warnings_and_bars_back_and_no_error(capfd):
    old = ["which", "attention.causal", *QUERY[1:]]
    with pytest.warns(DeprecationWarning):
        assert cli.run(old) == 0
    assert cli.run([*old, "--quiet"]) == 0 and capfd.readouterr().err == ""
    assert cli.run(["which", "no_such", "-q"]) == 2 and "no_such" in capfd.readouterr().err
    with pytest.warns(DeprecationWarning):  # it ends with the command
        assert cli.run(old) == 0


def test_an_alias_keeps_what_it_stands_for(capfd):
    """A deprecated name that fixes an argument, or stands for another operation's arguments."""
    for command in (["explain"], ["validate", "torch.sdpa.math", "--operation"]):
        found = []
        for name in ("attention.causal", "attention.full"):
            with pytest.warns(DeprecationWarning):
                cli.run([*command, name, *QUERY[1:], "--json"])
            found.append(json.loads(capfd.readouterr().out))
        if command == ["explain"]:
            assert [report["key"]["causal"] for report in found] == ["true", "false"]
    paged = ["--query", "f32[2,1,4,64]", "--key-cache", "f32[8,16,4,64]", "--value-cache", "f32[8,16,4,64]"]
    tables = ["--block-tables", "i32[2,4]", "--context-lens", "i32[2]"]
    with pytest.warns(DeprecationWarning):
        assert cli.run(["which", "attention.paged", *paged, *tables]) == 0


def test_policy_shows_all_where_everything_is_asked_for(capfd):
    assert cli.run(["policy", "show", "--all", "--json"]) == 0
    every = capfd.readouterr().out
    assert cli.run(["policy", "show", "-v", "--json"]) == 0 and capfd.readouterr().out == every


# Answers that rest on no library in Python.
WITHOUT_TORCH = {
    "which": ["which", *NORM],
    "which on a device": ["which", *QUERY, "--device", "h100"],
    "explain": ["explain", *NORM, "--verbose"],
    "explain on a device": ["explain", *QUERY, "--device", "b200", "-v"],
    "explain several axes": ["explain", "rope", "--input", "f32[7,4,16]", "--cos", "f32[7,8]", "--sin", "f32[7,8]"],
    "validate": ["validate", "hwy.norm.rms", *NORM[1:]],
    "list": ["list", "rms_norm"],
    "coverage": ["coverage", "cpu"],
    "backends": ["backends", "--no-import"],
    "doctor": ["doctor", "--no-import"],
}


@pytest.mark.parametrize("case", WITHOUT_TORCH)
def test_torch_is_not_imported_for(case):
    arguments = WITHOUT_TORCH[case]
    verbose = [] if "-v" in arguments or "--verbose" in arguments else ["-v"]
    code, out, err = command_line(*arguments, *verbose)
    assert code == 0 and out and "without importing torch" in err, err


def test_doctor_imports_torch_and_tries_it():
    code, out, err = command_line("doctor", "--json", "-v")
    report = json.loads(out)
    assert code == 0 and "with torch imported" in err and report["libraries"]["torch"]["tried"]
    report = json.loads(command_line("doctor", "--json", "--no-import")[1])
    assert not report["libraries"]["torch"]["tried"] and report["torch"] == __import__("torch").__version__
    text = command_line("doctor", "--no-import")[1]
    assert "(not tried)" in text


@pytest.mark.parametrize(
    "call",
    [
        NORM,
        QUERY,
        [*QUERY, "--causal", "true", "--layout", "BHSD"],
        ["rope", "--input", "f32[2,3,7,4,16]", "--cos", "f32[7,8]", "--sin", "f32[7,8]"],
        ["softmax", "--logits", "f16[3,5]"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_the_answer_is_that_of_a_call(call, capfd):
    """Of a call with tensors: descriptions in their place, and fewer imports, change nothing."""
    import torch

    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    arguments = {}
    for name, text in zip(call[1::2], call[2::2], strict=True):
        dtype, bracket, sizes = text.partition("[")
        value = (
            torch.empty(json.loads(bracket + sizes), dtype=dtypes[dtype]) if bracket else {"true": True}.get(text, text)
        )
        arguments[name[2:]] = value
    report = lz.explain(call[0], **arguments).to_dict()
    assert cli.run(["which", *call]) == 0
    assert capfd.readouterr().out.strip() == report["kernel_id"] == lz.which(call[0], **arguments).kernel_id
    assert cli.run(["explain", *call, "--try", "--json"]) == 0
    described = json.loads(capfd.readouterr().out)
    assert described | {"key": None} == report | {
        "key": None
    }  # a description has no address, whose alignment is a fact
    for candidate in report["candidates"][:8]:
        ok = cli.run(["validate", candidate["kernel_id"], *call[1:], "--operation", call[0], "--json"]) == 0
        said = json.loads(capfd.readouterr().out)
        assert ok == candidate["admissible"] and said["reasons"] == candidate["reasons"]


def test_what_was_not_tried_is_marked():
    code, out, _ = command_line("explain", *NORM)
    assert code == 0 and "was not tried (--try)" in out
    code, out, _ = command_line("explain", *NORM, "--try")
    assert code == 0 and "was not tried" not in out


def test_a_broken_library_is_refused_where_its_kernel_would_answer(tmp_path):
    """The chosen kernel's library is imported: what it cannot do is no answer."""
    (tmp_path / "lz_broken.py").write_text("raise ImportError('torn')")
    descriptor = {
        "schema_version": "1.0",
        "backend": "lz_broken",
        "backend_version": "1",
        "platform": "cpu",
        "requires": [{"import": "lz_broken"}],
        "ops": {
            "norm.rms": [
                {
                    "kernel_id": "lz_broken.rms",
                    "source": "lz_broken",
                    "adapter": "lz_broken:rms",
                    "platform": "cpu",
                    "priority": 99,
                    "dtypes": ["float32"],
                    "accepts": ["weight", "eps"],
                    "requires_layouts": ["any"],
                }
            ]
        },
    }
    code = f"""
import json, sys
sys.path.insert(0, {str(tmp_path)!r})
from layerzero import backends, cli
backends.register({descriptor!r}, "lz_broken")
cli.run(["which", *{NORM!r}])
cli.run(["validate", "lz_broken.rms", *{NORM[1:]!r}])
print("torch" in sys.modules)
"""
    env = os.environ | {"PYTHONPATH": str(PACKAGE)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == "hwy.norm.rms" and "torn" in done.stdout and lines[-1] == "False", done


MEASURED = """
import json, sys
import layerzero as lz
from layerzero import _layerzero, backends
from layerzero.inspection import doctor_report
backends.ensure_registered()
rows = [k for k in json.loads(_layerzero.kernels("linear")) if k["operation"] == "mlp.linear"]
times = {"hwy": 100.0, "onednn": 50.0, "openblas": 25.0, "libxsmm": 200.0}
records = []
for source, us in times.items():
    kernel = next(k["kernel_id"] for k in rows if k["source"] == source)
    about = {"kernel_id": kernel, "device_id": _layerzero.device_id("cpu"), "median_us": us, "p95_us": us, "backend": source}
    records.append(json.loads(sys.argv[1]) | about)
_layerzero.use_prior(json.dumps({"schema_version": "1.0", "records": records}), "test")
report = doctor_report(imports=False)
print(json.dumps({name: report.to_dict()["libraries"][name]["gain"] for name in times if name != "hwy"}))
print(report)
"""


def test_what_would_help_is_ordered_by_measured_gain():
    known = json.loads((Path(__file__).parents[2] / "devices/priors/amd-epyc-avx2-2c.json").read_text())["records"]
    record = next(r for r in known if r["operation"] == "mlp.linear" and r["backend"] == "hwy")
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_LIBRARIES": ""}
    command = [sys.executable, "-c", MEASURED, json.dumps(record)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, _, text = done.stdout.partition("\n")
    gains = json.loads(first)
    assert gains["openblas"] == {"calls": 1, "faster": 1, "speedup": 4.0} and gains["libxsmm"]["faster"] == 0
    places = [text.index(f"    {name}: ") for name in ("openblas", "onednn", "libxsmm")]
    assert places == sorted(places)
    assert "4.00x as fast in 1 of 1 calls" in text and "faster in none of 1 calls" in text
