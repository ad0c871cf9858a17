"""What commands show people: names that are whole in any width, groups, filters, help and completion from the contracts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.errors import did_you_mean
from layerzero.inspection.text import table  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent
NORM = ["rms_norm", "--input", "f32[2,8]", "--weight", "f32[8]"]
QUERY = ["--query", "bf16[1,16,4,64]", "--key", "bf16[1,16,4,64]", "--value", "bf16[1,16,4,64]"]


IDS = ["attention.standard.prefill.cascade", "flash_attn.v2.causal.sal.sm90", "hwy.norm.rms"]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_a_table_breaks_no_name(width):
    rows = [[name, "cuda", 123456, "source: wants installed, got no module of that name"] for name in IDS]
    text = table(["kernel", "platform", "us", "why"], rows, "T", wraps=["why"], width=width)
    for name in IDS:
        assert sum(name in line for line in text.splitlines()) == 1
    whole = all(part in text for part in ("cuda", "123456"))
    assert whole != ("not shown, too wide" in text)
    assert width < 120 or whole
    shown = [line for line in text.splitlines() if "not shown" not in line]
    assert max(map(len, shown)) <= max(width, max(map(len, IDS)) + 4)


def test_words_of_a_text_wrap():
    text = table(["id", "why"], [["a", "word " * 30]], wraps=["why"], width=60)
    assert text.count("word") == 30 and len(text.splitlines()) > 3
    assert len(table(["id", "why"], [["a", "word " * 30]], wraps=["why"]).splitlines()) == 3  # of no width: one line


def test_list_is_a_line_for_each_operation(run):
    code, out, _ = run("list")
    names = [line.split("│")[0].strip() for line in out.splitlines() if "│" in line]
    assert code == 0 and names[1:] == sorted(contracts()) or names == sorted(contracts())
    _, every, _ = run("list", "--verbose")
    assert all(line.count("torch.ref.norm.rms ") <= 1 for line in every.splitlines())
    kernels = [name for line in every.splitlines() if "│" in line and (name := line.split("│")[0].strip())]
    assert len(kernels) == len(set(kernels)) > 100  # each id once
    assert "reference" in every.splitlines()[-2] and "reference" not in every.splitlines()[3]  # last


def test_list_filters(run):
    def kernels(*options):
        code, out, _ = run("list", *options, "--json")
        assert code == 0
        return json.loads(out)["kernels"]

    assert {k["backend"] for k in kernels("--library", "zentorch")} == {"zentorch"}
    assert {k["platform"] for k in kernels("rms_norm", "--platform", "cuda")} == {"any", "cuda"}
    here = {device.platform for device in lz.doctor().devices.devices} | {"any"}
    assert {k["platform"] for k in kernels("--installed")} <= here  # what can run here
    code, _, err = run("list", "--library", "zentorhc")
    assert code == 2 and "did you mean zentorch?" in err
    assert run("list", "--platform", "gpu")[0] == 2


def test_which_takes_a_device(run):
    code, out, _ = run("which", *NORM, "--device", "h100")
    assert code == 0 and out.strip() == lz.explain("rms_norm", *tensors(), device="h100").kernel_id
    assert lz.which("rms_norm", *tensors(), device="h100").kernel_id == out.strip()
    with pytest.raises(lz.NoKernelFoundError):
        lz.which("rms_norm", *tensors(), device="h100", kernel="hwy.norm.rms")


def tensors():
    import torch

    return torch.ones(2, 8), torch.ones(8)


def test_explain_groups_what_is_refused(run):
    code, out, _ = run("explain", "attention", *QUERY, "--causal", "false", "--device", "h100")
    report = lz.explain(
        "attention", *[__import__("torch").ones(1, 16, 4, 64).bfloat16()] * 3, causal=False, device="h100"
    )
    refused = [c for c in report.candidates if not c.admissible]
    assert code == 0 and "(simulated)" in out and out.count("PLATFORM_MISMATCH") == 1
    _, every, _ = run("explain", "attention", *QUERY, "--causal", "false", "--device", "h100", "--verbose")
    lines = [line.split("│")[0].strip() for line in every.splitlines()]
    assert all(lines.count(c.kernel_id) == 1 for c in refused)
    assert "score: the kernel with the highest score runs." in " ".join(out.split())


@pytest.fixture
def planted():
    """A report for another device: a kernel that is not installed is chosen, another has one reason twice."""
    data = lz.explain("rms_norm", *tensors(), device="h100").to_dict()
    chosen = next(c for c in data["candidates"] if c["kernel_id"] == data["kernel_id"])
    refused = next(c for c in data["candidates"] if not c["admissible"])
    chosen |= {"installed": False, "measured_us": 12.34}
    refused["reasons"] = [{**refused["reasons"][0], "code": "SHAPE_UNSUPPORTED", "message": "planted"}] * 2
    return lz.SelectionReport(data)


@pytest.mark.parametrize("verbose", [False, True])
def test_explain_says_no_reason_twice(planted, verbose, capfd):
    from layerzero.cli import explain

    explain._print(planted, verbose)
    out = capfd.readouterr().out
    for text in (out, str(planted), "\n".join(row[3] for row in planted.rows())):
        assert text.count("planted") == 1


def test_explain_says_what_is_not_installed_and_what_was_measured(planted, capfd):
    from layerzero.cli import explain

    explain._print(planted, False)
    out = capfd.readouterr().out
    assert f"{planted.kernel_id}, which is not installed here" in out and "not installed here" in out.split("│", 4)[-1]
    assert "measured us" in out and "12.3" in out
    planted._data["candidates"] = [{**c, "installed": True} for c in planted._data["candidates"]]
    explain._print(planted, False)
    assert "not installed here" not in capfd.readouterr().out


@pytest.mark.parametrize("command", ["explain", "which", "validate"])
def test_help_shows_sizes_and_the_operations_own_options(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0 and "dtype[sizes]" in out
    first = "hwy.norm.rms" if command == "validate" else "norm.rms"
    code, out, _ = run(command, first, "--help")
    assert code == 0 and out.index("Usage") < out.index("Options of rms_norm")
    for param in contracts()["rms_norm"]["params"]:
        assert f"--{param['name'].replace('_', '-')} " in out and param["doc"][:20] in out


def completed(words, index):
    """What the shell offers for the last word."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "_LAYERZERO_COMPLETE": "complete_bash"}
    env |= {"COMP_WORDS": " ".join(["layerzero", *words]), "COMP_CWORD": str(index)}
    code = "from layerzero.cli import application; application()(prog_name='layerzero')"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "index", "wanted"),
    [
        (["exp"], 1, ["explain"]),
        (["explain", "rms"], 2, ["rms_norm"]),
        (["validate", "hwy.norm.r"], 2, ["hwy.norm.rms"]),
        (["explain", "rms_norm", "--device", "h"], 4, ["h100", "h200"]),
        (["explain", "rms_norm", "--wei"], 3, ["--weight", "--weight-offset"]),
        (["generate", "--weights", "int"], 3, ["int8", "int4"]),
    ],
    ids=str,
)
def test_completion(words, index, wanted):
    assert set(wanted) <= set(completed(words, index))


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["which", "rms_nrm"], "did you mean rms_norm?"),
        (["which", "RMSNorm"], "did you mean rms_norm?"),
        (["list", "norm.rmss"], "did you mean norm.rms?"),
        (["validate", "hwy.rms.norm", "--input", "f32[2,8]"], "did you mean hwy.norm.rms?"),
        (["validate", "nothing.like.it", "--input", "f32[2,8]"], "see `layerzero list`"),
        (["validate", "hwy.norm.rm", "--input", "f32[2,8]"], "did you mean hwy.norm.rms?"),
        (["which", *NORM, "--device", "h10"], "did you mean h100?"),
        (["which", *NORM, "--kernel", "hwy.norm.rmz"], "did you mean hwy.norm.rms?"),
        (["which", *NORM, "--epsi", "1"], "did you mean --eps?"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_the_nearest_name(run, arguments, near):
    code, _, err = run(*arguments)
    assert code == 2 and near in err


def test_no_name_is_near_nonsense():
    assert did_you_mean("xyzzy", ["rms_norm", "softmax"]) == ""


WRONG = [
    ["which", "rms_nrm", "--input", "f32[4]"],
    ["which", "rms_norm", "--input", "f32[2,8"],
    ["which", "rms_norm", "--input", "f33[2,8]"],
    ["which", *NORM, "--eps", "tiny"],
    ["which", *NORM, "--nonsense", "1"],
    ["which", *NORM, "stray"],
    ["which", "rms_norm", "--input"],
    ["explain", *NORM, "--device", "h1000"],
    ["cache", "cap", "1X"],
    ["generate", "--model", "/nonexistent", "--prompt", "a"],
    ["generate", "--prompt", "a", "--prompts-file", "b"],
    ["generate", "--weights", "int3"],
    ["generate", "--top-p", "2"],
    ["generate", "--max-tokens", "many"],
    ["bench", "ops", "--operations", "nothing"],
    ["bench", "models", "--families", "lama"],
    ["list", "--no-such-option"],
    ["no-such-command"],
    ["cache", "cap"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_the_parts_of_an_error_are_filled(run, arguments):
    code, out, err = run(*arguments, "--json")
    error = json.loads(out)["error"]
    assert code == 2 and err == ""
    assert all(error[key] for key in ("type", "message", "field", "wanted", "got")), error


def test_a_program_that_only_a_clone_has_is_hidden(monkeypatch, run, tmp_path):
    from layerzero.cli import bench_select

    for there in (True, False):
        program = tmp_path / f"program-{there}"
        if there:
            program.write_text("")
        monkeypatch.setattr(bench_select, "_program", lambda program=program: program)
        assert ("select" in run("bench", "--help")[1]) == there
    code, _, err = run("bench", "select")
    assert code == 1 and "make bench" in err and "site-packages" not in err
