"""`layerzero generate` as a tool: wrong options before any work, lines on standard error, Ctrl-C, models by id."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
import small_model  # noqa: E402
from layerzero import cli  # noqa: E402
from layerzero.cli import generate  # noqa: E402
from layerzero.models import gguf  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(small_model.save(tmp_path_factory.mktemp("model")))


WRONG = [
    (["--weights", "int3"], "int4"),
    (["--weights", "INT8"], "did you mean int8?"),
    (["--dtype", "f64"], "f32"),
    (["--activations", "int4", "--weights", "int8"], "input, int8"),
    (["--activations", "int8"], "--weights"),
    (["--activations", "int8", "--weights", "bf16"], "bf16"),
    (["--release"], "--weights"),
    (["--weights", "int8", "--no-layerzero"], "--no-layerzero"),
    (["--top-p", "2"], "--top-p"),
    (["--top-k", "0"], "--top-k"),
    (["--min-p", "-1"], "--min-p"),
    (["--min-p", "0.1", "--top-k", "3"], "min_p"),
    (["--top-p", "0"], "top_p"),
    (["--temperature", "-1"], "--temperature"),
    (["--threads", "0"], "--threads"),
]


@pytest.mark.parametrize(
    ("options", "text"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_options_are_refused_before_a_model_is_loaded(options, text, monkeypatch, capfd):
    monkeypatch.setattr(generate, "_open", None)  # would fail
    assert cli.run(["generate", "--prompt", "hi", *options]) == 2
    err = capfd.readouterr().err
    assert text in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    "command", [["bench", "e2e", "--dtypes", "bf16,f64"], ["demo", "--dtype", "f64"]], ids=" ".join
)
def test_other_commands_check_first_too(command, monkeypatch, capfd):
    monkeypatch.setattr(gguf, "load", None)
    assert cli.run(command) == 2 and "wanted one of bf16, f16, f32" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("command", "near"),
    [
        (["bench", "host", "--operation", "rms_nrm"], "did you mean rms_norm?"),
        (["bench", "host", "--device", "cdua"], "did you mean cuda?"),
        (["bench", "ops", "--operations", "cast,sofmax"], "did you mean softmax?"),
        (["bench", "models", "--families", "llma"], "did you mean llama?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_benchmarks_check_names_before_they_measure(command, near, capfd):
    assert cli.run(command) == 2 and near in capfd.readouterr().err


def test_kernelize_names_what_is_wrong_with_its_arguments():
    for module in (torch.nn.Linear(4, 4), torch.nn.Sequential()):
        with pytest.raises(lz.InvalidRequestError, match=r"weights: wanted one of gguf, .*'int5'"):
            lz.kernelize(module, weights="int5")
        with pytest.raises(lz.InvalidRequestError, match="activations: wanted one of input, int8"):
            lz.kernelize(module, weights="int8", activations="int9")


@pytest.fixture
def arguments(folder):
    return ["generate", "--model", folder, "--dtype", "f32", "--max-tokens", "5"]


def test_what_it_does_is_on_standard_error(arguments, folder, capfd):
    assert cli.run([*arguments, "--prompt", "hello"]) == 0
    out, err = capfd.readouterr()
    assert f"loading {folder} in f32" in err and "preparing" in err and "tokens/s" in err and "tokens/s" not in out
    for option in ("--quiet", "-q", "--json"):
        assert cli.run([*arguments, "--prompt", "hello", option]) == 0
        assert capfd.readouterr().err == ""


LONG = ["--max-tokens", "60"]


def lengths(err):
    """Tokens of each answer."""
    return [int(count) for count in re.findall(r"answer (\d+) tokens", err)]


@pytest.fixture
def interrupting(monkeypatch):
    """Ctrl-C is pressed at the first piece of text of a first answer."""
    pieces = []

    def write(piece):
        pieces.append(piece)
        if len(pieces) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(generate, "write_now", write)
    return pieces


def test_an_interrupt_ends_the_answer(arguments, interrupting, monkeypatch, capfd):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nthere\n"))
    before = signal.getsignal(signal.SIGINT)
    assert cli.run([*arguments, *LONG]) == 0  # the conversation goes on
    first, second = lengths(capfd.readouterr().err)
    assert first < 60 and second > 0
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_of_the_only_answer_is_in_the_exit_code(arguments, interrupting, capfd):
    assert cli.run([*arguments, *LONG, "--prompt", "hello"]) == 130
    assert lengths(capfd.readouterr().err)[0] < 60


def test_a_second_interrupt_ends_the_program(arguments, monkeypatch, capfd):
    def write(piece):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(generate, "write_now", write)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nthere\n"))
    assert cli.run([*arguments, *LONG]) == 130
    assert not lengths(capfd.readouterr().err)


def test_lines_of_a_terminal_are_edited(monkeypatch):
    typed = iter(["hello", "there"])

    def read(prompt):
        assert prompt == "> " and "readline" in sys.modules
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    pytest.importorskip("readline")
    sys.modules.pop("readline")
    monkeypatch.setattr("builtins.input", read)
    assert list(generate._lines(True)) == ["hello", "there"]


def test_a_model_in_the_hubs_cache_by_its_id(folder, tmp_path, monkeypatch, capfd):
    from huggingface_hub import constants

    snapshot = tmp_path / "models--me--small/snapshots/abc"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(folder)
    (tmp_path / "models--me--small/refs").mkdir()
    (tmp_path / "models--me--small/refs/main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert gguf.resolve_model("me/small") == (snapshot, False)
    assert cli.run(["generate", "--model", "me/other", "--prompt", "hi", "--json"]) == 2
    error = json.loads(capfd.readouterr().out)["error"]
    assert error["field"] == "model" and error["fix"].endswith("hf download me/other")


def test_no_bar_in_a_pipe(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    import small_gguf

    path = tmp_path / "small.gguf"
    small_gguf.write(path)
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "LAYERZERO_CACHE_DIR": str(tmp_path / "cache")}
    command = [
        sys.executable,
        "-m",
        "layerzero",
        "generate",
        "--model",
        str(path),
        "--prompt",
        "w1",
        "--max-tokens",
        "2",
    ]
    done = subprocess.run([*command, "--raw"], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "%|" not in done.stderr and "it/s" not in done.stderr
