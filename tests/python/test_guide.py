"""Every example of the README and of every page of the guide runs as it is written, but for the paths of models."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")
pytest.importorskip("typer")

import layerzero  # noqa: E402
import small_model  # noqa: E402
from layerzero import cli, models  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guide"
PAGES = [ROOT / "README.md", *sorted(GUIDE.glob("*.md"))]
MODELS = ("path/to/a/llama", "path/to/a/model")
# Pages in the order in which they are read: each names the next.
ORDER = ["install", "first-model", "why-this-kernel", "policy", "cpp", "add-a-kernel", "troubleshooting"]
# Languages whose blocks other tests compile: tests/python/packaging/test_cpp_package.py.
COMPILED = {"cpp", "cmake"}
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(layerzero.__file__).parent.parent)}


def blocks(page, *languages):
    """(language, text) of the fenced blocks, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for block in found if not languages or block[0] in languages]


def with_blocks(*languages):
    return pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, *languages)], ids=lambda page: page.stem)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(small_model.save(tmp_path_factory.mktemp("model")))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with what examples read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    return tmp_path


@with_blocks("python")
def test_python_runs(page, model, here, capsys):
    """The blocks of a page are one program."""
    names = {}
    for _, code in blocks(page, "python"):
        for path in MODELS:
            code = code.replace(path, model)
        exec(compile(code, str(page), "exec"), names)
    if page.stem == "README":
        assert "norm.rms" in capsys.readouterr().out


def lines(page):
    """Commands of a page's shell blocks."""
    return [line for _, text in blocks(page, "sh") for line in text.splitlines() if line and not line.startswith("#")]


@with_blocks("sh")
def test_commands_run(page, model, here, monkeypatch, capsys):
    load = models.load
    monkeypatch.setattr(models, "load", lambda path, dtype: load(path or model, dtype))
    # As where the environment is active: `python` is the one that has the package.
    monkeypatch.setenv("PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    for line in lines(page):
        words = shlex.split(line, comments=True)
        variables = dict(words.pop(0).split("=") for word in words[:] if re.fullmatch(r"[A-Z_]+=\S*", word))
        program, *arguments = words
        if program == "make":
            targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert arguments[0] in targets, line
            assert arguments[1:] == [] or arguments[1] == "&&", line
        elif program == "source":
            assert arguments == [".venv/bin/activate"], line
        elif program == "cmake":
            assert page.stem in ("cpp", "add-a-kernel"), line  # built by tests/python/packaging/test_cpp_package.py
        else:
            assert program.removeprefix(".venv/bin/") == "layerzero", line
            wanted = int((re.findall(r"# exit code (\d)", line) or ["0"])[0])
            assert run(arguments, variables) == wanted, line + capsys.readouterr().err


def run(arguments, variables):
    if not variables:
        return cli.run(arguments)
    command = [sys.executable, "-m", "layerzero", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT | variables, capture_output=True, text=True, timeout=120)
    if "LAYERZERO_DISABLED" in variables:
        assert "ref." in done.stdout
    return done.returncode


@with_blocks("yaml")
def test_policies_are_right(page, tmp_path, request):
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("version: 1")
    request.addfinalizer(lambda: layerzero.load_config(nothing))  # what is checked is in force until the next file
    for number, (_, text) in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text if "version:" in text else f"version: 1\n{text}")
        assert cli.run(["policy", "check", str(path), "--json"]) == 0, text


def test_blocks_have_a_language_that_is_tested():
    for page in PAGES:
        for language, text in blocks(page):
            if language == "json":
                json.loads(text)
            else:
                # A block without a language is a picture.
                assert language in {"python", "sh", "yaml", "", *COMPILED}, page


def test_the_pages_are_read_in_order():
    index = (GUIDE / "README.md").read_text()
    assert re.findall(r"^\d\. \[.*\]\((.*)\.md\)", index, re.MULTILINE) == ORDER
    for page in GUIDE.glob("*.md"):
        assert page.stem == "README" or f"({page.name})" in index, page
    assert "(docs/guide/README.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_command_is_on_its_page():
    page = (GUIDE / "command-line.md").read_text()
    import pkgutil

    commands = [m.name.replace("_", " ") for m in pkgutil.iter_modules(cli.__path__) if not m.name.startswith("_")]
    assert sorted(re.findall(r"^\| `layerzero ([a-z0-9 ]+)` \|", page, re.MULTILINE)) == sorted(commands)
