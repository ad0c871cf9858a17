"""The command line: what it prints as JSON, its exit codes, its messages."""

import contextlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero  # noqa: E402
from layerzero import cli  # noqa: E402

ENVIRONMENT = {"PYTHONPATH": str(Path(layerzero.__file__).parent.parent), "PATH": os.defpath}

QUERY = ["--query", "bf16[1,16,4,64]", "--key", "bf16[1,16,4,64]", "--value", "bf16[1,16,4,64]"]
NORM = ["rms_norm", "--input", "f32[2,8]", "--weight", "f32[8]"]


@pytest.fixture
def run_json(run):
    def call(*arguments):
        code, out, _ = run(*arguments, "--json")
        return code, json.loads(out)

    return call


def test_doctor(run_json, run):
    code, report = run_json("doctor")
    assert code == (0 if report["ok"] else 1)
    assert set(report) == {
        "layerzero", "python", "torch", "devices", "threads", "libraries", "packages", "policy", "counters", "served_by_reference",
        "problems", "ok", "health", "perfdb", "untuned",
    }  # fmt: skip
    assert report["libraries"]["torch"]["installed"]
    assert "layerzero" in run("doctor")[1]


def test_list(run_json, run):
    code, answer = run_json("list", "norm.rms")
    assert code == 0 and answer["operations"] == [{"name": "rms_norm", "operations": ["norm.rms"]}]
    assert "hwy.norm.rms" in {k["kernel_id"] for k in answer["kernels"]}
    _, installed = run_json("list", "norm.rms", "--installed")
    assert all(k["installed"] for k in installed["kernels"]) and len(installed["kernels"]) < len(answer["kernels"])
    assert "hwy.norm.rms" in run("list", "norm.rms")[1]


def test_which(run_json, run):
    code, answer = run_json("which", *NORM)
    assert code == 0 and set(answer) == {"kernel_id", "score"}
    assert run("which", *NORM)[1].strip() == answer["kernel_id"]


def test_explain(run_json, run):
    code, report = run_json("explain", "attention", *QUERY)
    assert code == 0 and report["operation"] == "attention.standard.prefill"
    assert {"kernel_id", "score", "candidates", "plan", "key", "policy_hash", "device"} <= set(report)
    code, out, _ = run("explain", "attention", *QUERY, "--causal", "false", "--device", "h100")
    assert code == 0 and "on h100" in out and "PLATFORM_MISMATCH" in out


def test_explain_says_no_with_exit_code_1(run_json):
    code, answer = run_json("explain", *NORM, "--kernel", "zentorch.rms_norm")
    assert code == 1 and answer["kernel_id"] is None


def test_validate(run_json, run):
    code, answer = run_json("validate", "hwy.norm.rms", *NORM[1:])
    assert code == 0 and answer == {"kernel_id": "hwy.norm.rms", "operation": "rms_norm", "ok": True, "reasons": []}
    assert run("validate", "hwy.norm.rms", *NORM[1:])[:2] == (0, "hwy.norm.rms takes this call of rms_norm\n")
    code, answer = run_json("validate", "zentorch.rms_norm", *NORM[1:])
    codes = {reason["code"] for reason in answer["reasons"]}
    assert code == 1 and not answer["ok"] and "NOT_INSTALLED" in codes
    code, out, _ = run("validate", "zentorch.rms_norm", *NORM[1:])
    assert code == 1 and all(code in out for code in codes)
    assert "nobody" in run("validate", "nobody", *NORM[1:])[2]
    code, _, err = run("validate", "hwy.norm.rms", *NORM[1:], "--operation", "layer_norm")
    assert code == 2 and "layer_norm" in err


def test_backends(run_json, run):
    code, answer = run_json("backends")
    assert code == 0 and answer["problems"] == []
    found = {backend["name"]: backend for backend in answer["backends"]}
    assert set(found) >= {"layerzero.cpu", "layerzero.cuda", "torch", "torch.ref", "zentorch"}
    assert found["torch"]["installed"] and found["torch"]["version"] == torch.__version__
    assert "norm.rms" in found["layerzero.cpu"]["operations"] and found["layerzero.cpu"]["usable"]
    for backend in found.values():
        assert backend["usable"] == (not backend["missing"])
        # Other tests register kernels that describe themselves by nothing.
        assert backend["description"] or backend["name"] not in (
            "layerzero.cpu",
            "layerzero.cuda",
            "torch",
            "zentorch",
        )
        assert backend["installed"] or backend["missing"]
    assert "zentorch>=2.13" in run("backends")[1]


def test_version(run):
    assert run("--version") == (0, f"layerzero {layerzero.version_info.build}\n", "")
    assert "Options of the program" not in run("--help")[1]


def test_exit_codes_are_in_the_help(run):
    text = " ".join(run("--help")[1].replace("│", " ").split())
    assert cli.EXIT_CODES in text


@pytest.mark.parametrize("group", ["", *cli.GROUPS])
def test_lists_of_commands_show_whole_sentences(run, group):
    _, _, commands = run(*filter(None, [group]), "--help")[1].partition("Commands:\n")
    lines = [line for line in commands.split("\n\n")[0].splitlines() if line]
    assert lines and all(line.endswith(".") and not line.endswith("...") for line in lines), commands


def on_a_terminal(arguments, **environment):
    """What a command writes to standard output and error, both a terminal of 120 columns."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "layerzero", *arguments], env=environment, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    with contextlib.suppress(OSError):  # the terminal ends with its last process
        while piece := os.read(ours, 65536):
            written += piece
    os.close(ours)
    assert process.wait(60) == 0
    return written.decode()


COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3|4|9)[0-7]")  # bold and italic are none


def test_colours_and_bars_are_for_terminals():
    bench = ["bench", "host", "--operation", "rms_norm", "--rounds", "1"]
    shown = on_a_terminal(bench)
    assert COLOUR.search(shown) and "operations next to torch" in shown
    assert not COLOUR.search(on_a_terminal(bench, NO_COLOR="1"))
    done = subprocess.run(
        [sys.executable, "-m", "layerzero", *bench], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout and "rms_norm" in done.stdout and done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["explain", "no_such"], "no_such"),
        (["explain", *NORM, "--device", "h1000"], "h1000"),
        (["which", "rms_norm", "--input", "f32[2,8"], "dtype[sizes]"),
        (["which", "rms_norm", "--input", "f33[2,8]"], "f33"),
        (["which", *NORM, "--nonsense", "1"], "--weight-offset"),
        (["which", *NORM, "--eps", "tiny"], "--eps"),
        (["which", "rms_norm", "--weight", "f32[8]"], "input"),
        (["which", "rms_norm", "--input"], "value"),
        (["which", *NORM, "stray"], "stray"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_usage_is_exit_code_2(run, run_json, arguments, text):
    code, out, err = run(*arguments)
    assert code == 2 and text in err and out == ""
    code, answer = run_json(*arguments)
    assert code == 2 and set(answer["error"]) == {"type", "message", "field", "wanted", "got", "fix"}
    assert text in answer["error"]["message"]


def test_unknown_commands_and_options(run):
    assert run("no-such-command")[0] == 2
    assert run("list", "--no-such-option")[0] == 2
    assert run("--help")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "/nonexistent"],
        ["generate", "--model", "/nonexistent"],
        ["generate", "--model", "/"],
        ["generate", "--max-tokens", "0"],
        ["generate", "--prompts-file", "/nonexistent"],
        ["list", "--no-such-option"],
        ["no-such-command"],
        ["bench"],
    ],
    ids=" ".join,
)
def test_every_error_is_json_where_asked(run, arguments):
    code, out, err = run(*arguments, "--json")
    assert code == 2 and err == ""
    assert set(json.loads(out)["error"]) == {"type", "message", "field", "wanted", "got", "fix"}


def test_policy(run_json, tmp_path, monkeypatch):
    code, answer = run_json("policy", "show", "--all")
    assert code == 0 and set(answer["keys"]["strict_mode"]) >= {"value", "origin"}
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: 1\nno_such_key: 1\n")
    code, answer = run_json("policy", "check", str(wrong))
    assert code == 1 and not answer["ok"] and "wrong.yaml:2" in answer["error"]
    code, answer = run_json("policy", "check", str(tmp_path / "absent.yaml"))
    assert code == 1 and "readable" in answer["error"]
    right = tmp_path / "right.yaml"
    right.write_text("version: 1\n")
    answer = {"file": str(right), "ok": True, "error": None, "not_installed": []}
    assert run_json("policy", "check", str(right)) == (0, answer)


def test_bench_host(run_json):
    code, report = run_json("bench", "host", "--operation", "rms_norm", "--rounds", "3")
    assert code == 0 and {r["kind"] for r in report["results"]} == {"own", "torch"}
    for row in report["results"]:
        assert {"operation", "kernel_id", "kind", "call", "lz_ns", "torch_ns", "ratio", "aa_spread"} <= set(row)
        assert row["lz_ns"] > 0 and row["torch_ns"] > 0


def test_bench_models(run_json, run):
    pytest.importorskip("transformers")
    code, report = run_json("bench", "models", "--families", "llama, vit", "--rounds", "1")
    assert code == (0 if report["ok"] else 1) and list(report["families"]) == ["llama", "vit"]
    for row in report["families"].values():
        assert row["wrong"] == [] and row["crash"] is None and row["ratio"] > 0
        assert {kind: site["replaced"] for kind, site in row["sites"].items()} == {
            kind: site["replaceable"] for kind, site in row["sites"].items()
        }
    code, _, err = run("bench", "models", "--families", "llama,lama")
    assert code == 2 and "'lama'" in err


def test_bench_select_is_run_or_says_what_is_missing(run):
    code, out, err = run("bench", "select", "--repeat", "1")
    assert "inline_hit_ns" in json.loads(out) if code == 0 else "make bench" in err


def test_the_module_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "layerzero", "list", "no_such", "--json"],
        env=ENVIRONMENT | {"PATH": ""},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2 and json.loads(result.stdout)["error"]["type"] == "UnknownNameError"


def test_an_interrupt_is_no_traceback(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("layerzero.cli.list.kernel_rows", interrupted)
    for arguments in (["list"], ["list", "--json"]):
        code, out, err = run(*arguments)
        assert code == 130 and "interrupted" in err and "Traceback" not in err
        assert out == "" if len(arguments) == 1 else json.loads(out)["error"]["type"] == "KeyboardInterrupt"


@pytest.mark.parametrize("spread", [None, 0.04])
def test_a_comparison_has_a_column_for_a_spread_that_was_measured(spread):
    from layerzero.cli.bench_e2e import side_by_side

    metrics = ("prefill_tok_s", "decode_tok_s", "first_token_s")
    measured = {"transformers": 2.0, "layerzero": 4.0, "ratio": 2.0, "aa_spread": spread}
    columns, rows = side_by_side({"measured": dict.fromkeys(metrics, measured)})
    assert ("A/A spread" in columns) == (spread is not None)
    assert {len(row) for row in rows} == {len(columns)}
    assert spread is None or {row[-1] for row in rows} == {"0.04"}
