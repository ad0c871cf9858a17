"""Standard output of the command line: a reader that goes away, a full disk, a locale without lines, programs that print."""

import errno
import importlib
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

PROGRAM = "import sys, torch, layerzero as lz\nprint('of the program')\nlz.rms_norm(torch.ones(2, 8), torch.ones(8))\n"


def start(*arguments, cwd=None, **options):
    command = [sys.executable, "-m", "layerzero", *arguments]
    return subprocess.Popen(command, cwd=cwd, text=True, **{"stderr": subprocess.PIPE} | options)


def test_a_reader_that_has_gone_is_no_error():
    process = start("list", stdout=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(120)) == ("", 0)


def test_another_error_is_one_though_the_reader_has_gone(monkeypatch, capsys):
    typer = pytest.importorskip("typer")
    output = importlib.import_module("layerzero.cli._output")
    monkeypatch.setattr(output, "reader_has_gone", lambda: True)
    for error, code in (
        (PermissionError(errno.EACCES, "denied", "file"), 1),
        (BrokenPipeError(errno.EPIPE, "pipe"), 0),
    ):
        with pytest.raises(typer.Exit) as caught, output.answers(False):
            raise error
        assert caught.value.exit_code == code


def test_a_full_disk_is_an_error_without_a_traceback():
    with open("/dev/full", "w") as full:
        process = start("list", stdout=full)
        text = process.stderr.read()
    assert process.wait(120) == 1 and "No space left on device" in text and "Traceback" not in text


def test_a_locale_without_lines_has_marks_for_them():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    process = start("list", "rms_norm", stdout=subprocess.PIPE, env=environment)
    out, text = process.communicate(timeout=120)
    assert process.returncode == 0 and "hwy.norm.rms" in out and text == ""


@pytest.fixture
def answer(tmp_path, capfd):
    from layerzero import cli

    def call(source, *arguments):
        (tmp_path / "program.py").write_text(source)
        code = cli.run([*arguments, str(tmp_path / "program.py")])
        out, err = capfd.readouterr()
        return code, json.loads(out), err

    return call


@pytest.mark.parametrize("ending", ["", "sys.exit(3)\n", "1 / 0\n"], ids=["done", "exit", "error"])
def test_a_program_that_prints_leaves_json_alone(answer, tmp_path, ending):
    page = str(tmp_path / "page.html")
    frozen = str(tmp_path / "frozen.yaml")
    for arguments in (
        ["report", "--json", "-o", page],
        ["policy", "freeze", "--json", "-o", frozen],
        ["run", "--json", "--require", "*"],
    ):
        code, document, err = answer(PROGRAM + ending, *arguments)
        assert "of the program" in err
        if "1 / 0" in ending:
            assert code == 1 and document["error"]["type"] == "ProgramFailedError"
            assert "ZeroDivisionError" in document["error"]["message"] and "runpy" not in err
        else:
            assert code == (3 if ending else 0) and "error" not in document


@pytest.mark.parametrize("command", [["report"], ["policy", "freeze"]], ids=" ".join)
def test_an_output_that_cannot_be_written_is_json_before_the_program_runs(answer, tmp_path, command):
    code, document, err = answer(PROGRAM, *command, "--json", "--output", str(tmp_path / "none" / "x"))
    assert code == 1 and document["error"]["type"] == "FileError" and "of the program" not in err
