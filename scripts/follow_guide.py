"""Follows the guide word for word in a fresh clone of HEAD, and stops at the first command or example that fails.

python scripts/follow_guide.py                              with the python3 of PATH
python scripts/follow_guide.py --python /usr/bin/python3    with another interpreter
python scripts/follow_guide.py --list                       lists the commands without running them

Pages are run in the order of docs/guide/README.md. Their shell blocks are typed into one bash, line by line, so that
`cd` and an activated environment persist; a line may have the comment `# exit code N`. The Python blocks of a page are
one program, run by the `python` of that shell. Only the paths of models are replaced, by a small model. The interpreter
is set as in the guide, by PYTHON. The result is bench/results/guide-<version of Python>.json.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
GUIDE = Path("docs/guide")
MODEL_PATHS = ("path/to/a/llama", "path/to/a/model")
SMALL_MODEL = "tests/python/support/small_model.py"
NOT_RUN = {
    "": "a picture",
    "yaml": "a policy file: checked by tests/python/test_guide.py",
    "json": "a format: read by tests/python/test_guide.py",
    "cpp": "a part of a program: compiled by tests/python/packaging/test_cpp_package.py",
    "cmake": "a part of a build: used by tests/python/packaging/test_cpp_package.py",
}
# Runs each program text, one JSON string per line, in one namespace; writes a status to the given descriptor.
RUNNER = """
import json, os, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), sys.argv[1], "exec"), names)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os.write(int(sys.argv[2]), b"%d\\n" % status)
"""


class Failed(Exception):
    """A command or an example failed or behaved differently than the page says."""


def pages(root: Path) -> list[Path]:
    """Returns the pages of the guide in the order of its index."""
    index = (root / GUIDE / "README.md").read_text(encoding="utf-8")
    names = re.findall(r"\]\(([a-z0-9-]+\.md)\)", index)
    return [root / GUIDE / name for name in dict.fromkeys(names)]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns (language, text) of the fenced blocks of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


class Program:
    """A child process that reads work from standard input and writes a status to a separate descriptor."""

    def __init__(self, command: list[str], env: dict[str, str], cwd: Path):
        read, write = os.pipe()
        command = [part.replace("{status}", str(write)) for part in command]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, env=env, cwd=cwd, pass_fds=[write], encoding="utf-8"
        )
        os.close(write)
        self.descriptor = write
        self._answers: IO[str] = os.fdopen(read)

    def ask(self, text: str) -> int:
        """Returns the status of one piece of work; -1 if the process ended during it."""
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(text)
            self._child.stdin.flush()
        return int(self._answers.readline() or -1)

    def close(self) -> None:
        assert self._child.stdin
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.wait()
        self._answers.close()


class Reader:
    """Follows the guide in `clone` with one shell, and a Python program for each page."""

    def __init__(self, clone: Path, python: str, scratch: Path):
        self._clone, self._scratch = clone, scratch
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAYERZERO_")}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            kept.pop(name, None)
        self._shell = Program(["bash", "--norc", "-s"], kept | {"PYTHON": python}, clone)
        self._program: Program | None = None
        self._model: str | None = None

    def type(self, line: str) -> None:
        """Runs one line of a shell block; raises Failed on an unexpected exit code."""
        print(f"$ {line}", flush=True)
        wanted = int((re.findall(r"# exit code (\d+)", line) or ["0"])[0])
        status = self._shell.ask(f"{{ {line}\n}} </dev/null; echo $? >&{self._shell.descriptor}\n")
        if status != wanted:
            raise Failed(f"exit code {status}, wanted {wanted}: {line}")

    def run(self, page: Path, code: str) -> None:
        """Runs one Python block of a page."""
        print("".join(f">>> {line}\n" for line in code.splitlines()), end="", flush=True)
        for path in MODEL_PATHS:
            if path in code:
                code = code.replace(path, self._small_model())
                print(f"({path}: here {self._small_model()}, by {SMALL_MODEL})", flush=True)
        if self._program is None:
            environment, folder = self._place()
            command = ["python", "-c", RUNNER, str(page.relative_to(self._clone)), "{status}"]
            self._program = Program(command, environment, folder)
        if self._program.ask(json.dumps(code) + "\n") != 0:
            raise Failed("a Python block raised; see above")

    def turn_page(self) -> None:
        if self._program:
            self._program.close()
        self._program = None

    def close(self) -> None:
        self.turn_page()
        self._shell.close()

    def _place(self) -> tuple[dict[str, str], Path]:
        """Returns the shell's environment and folder."""
        seen = self._scratch / "environment"
        self._shell.ask(f"env -0 >'{seen}'; pwd >'{seen}.folder'; echo 0 >&{self._shell.descriptor}\n")
        environment = dict(entry.split("=", 1) for entry in seen.read_text().split("\0") if entry)
        return environment, Path(Path(f"{seen}.folder").read_text().strip())

    def _small_model(self) -> str:
        if self._model is None:
            self._model = str(self._scratch / "model")
            script = "import sys; sys.path.insert(0, 'tests/python/support'); import small_model; small_model.save(sys.argv[1])"
            command = [str(self._clone / ".venv/bin/python"), "-c", script, self._model]
            subprocess.run(command, cwd=self._clone, check=True)
        return self._model


def follow(clone: Path, python: str, scratch: Path) -> Iterator[dict[str, Any]]:
    """Runs the guide; yields a record for each block."""
    reader = Reader(clone, python, scratch)
    try:
        for page in pages(clone):
            for language, text in blocks(page):
                record: dict[str, Any] = {
                    "page": page.stem,
                    "language": language or "none",
                    "first": text.split("\n")[0],
                }
                if language in NOT_RUN:
                    yield record | {"skipped": NOT_RUN[language]}
                    continue
                print(f"\n== {page.relative_to(clone)}", flush=True)
                start = time.monotonic()
                if language == "python":
                    reader.run(page, text)
                else:
                    for line in text.splitlines():
                        reader.type(line)
                yield record | {"seconds": round(time.monotonic() - start, 1)}
            reader.turn_page()
    finally:
        reader.close()


def show(root: Path) -> None:
    for page in pages(root):
        for language, text in blocks(page):
            first = text.split("\n")[0]
            print(f"{page.stem}: {language or 'none'}: {NOT_RUN.get(language) or 'run'}: {first}")


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        show(ROOT)
        return 0
    asked = [options.python, "-c", "import platform, sys; print(platform.python_version(), sys.executable)"]
    version, executable = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(" ", 1)
    commit, start = git("rev-parse", "--short=12", "HEAD"), time.monotonic()
    done: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="layerzero-guide-") as folder:
        clone = Path(folder) / "layerzero"
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        subprocess.run(["git", "-C", str(clone), "checkout", "-q", "--detach", commit], check=True)
        try:
            done += follow(clone, options.python, Path(folder))
        except Failed as problem:
            print(f"\nfollow_guide.py: Python {version}: {problem}", file=sys.stderr)
            return 1
    result = {
        "commit": commit,
        "python": {"version": version, "executable": executable},
        "machine": machine(),
        "seconds": round(time.monotonic() - start),
        "blocks_run": sum("seconds" in record for record in done),
        "blocks_skipped": sum("skipped" in record for record in done),
        "stand_ins": dict.fromkeys(MODEL_PATHS, SMALL_MODEL),
        "blocks": done,
    }
    path = ROOT / f"bench/results/guide-{version}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{result['blocks_run']} blocks run, {result['blocks_skipped']} skipped: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
