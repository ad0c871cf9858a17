"""Hostile descriptors, policies, plugins, signatures and messages of workers: each must be refused with its reason, and none may crash.

python bench/hostile.py --cases 10000 > bench/results/hostile-<machine>.json
python bench/hostile.py --cases 400 --hole unsigned      (a planted hole, which the same script must find: exit code 1)
python bench/hostile.py --cases 400 --control            (each of the holes in turn: exit code 0 if all of them were found)

Every case is invalid by its making: a valid text with a change that breaks it. Cases run in processes of their own, many
in each, so that a crash is one finding, and the next process goes on after it. The JSON has for each kind how many were
refused, and up to twenty of those that were accepted, crashed, hung or were refused without saying what was wanted.
"""

import argparse
import contextlib
import json
import os
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hostile_cases

ROOT = Path(__file__).resolve().parents[1]


class Side:
    """What C++ calls in a call; every failure is raised or sent as a text."""

    functions = [lambda *_: None]  # noqa: RUF012

    def __init__(self, refuse: Callable[[str], Any]) -> None:
        self.refuse = refuse

    def failed(self, message: bytes) -> None:
        from layerzero.isolation import failures, protocol

        protocol.read_json(message, protocol.Kind.ERROR, **failures.FIELDS)
        self.refuse("no error")

    def error_message(self, error: BaseException) -> bytes:
        return b"\x14" + f"{type(error).__name__}: {error}".encode()[:1000]

    def set_threads(self, threads: int) -> None:
        """The process keeps its own threads."""

    def take_warnings(self) -> bytes:
        return b""

    def warn(self, text: bytes) -> None:
        from layerzero.isolation import protocol

        protocol.read_warnings(text)


# ---- what runs in a process: each returns nothing if it was refused with what was wanted, or the finding


class Run:
    def __init__(self, folder: Path, hole: str) -> None:
        import layerzero as lz
        from layerzero import _layerzero

        self.lz, self.native, self.folder, self.hole = lz, _layerzero, folder, hole
        self.pem, self.public = _layerzero.new_key()
        self.other_pem, _ = _layerzero.new_key()
        required = "none" if hole == "unsigned" else "all"
        self.security = {"require_signatures": required, "trusted_keys": [self.public]}
        lz.configure(security=self.security)
        plugins = [*ROOT.glob("build/*/plugins/libplugin_good.so")]
        self.library = plugins[0].read_bytes() if plugins else Path(_layerzero.__file__).read_bytes()
        self.kept: list[tuple[socket.socket, socket.socket]] = []
        import torch
        from layerzero.torch import attach

        attach.attach(torch)
        from layerzero.isolation import protocol  # noqa: F401  # sets the types of errors

        self.rules = (ROOT / "examples/plugin/capabilities.json").read_bytes()

    def channels(self) -> tuple[Any, Any]:
        """Returns this process's side and the worker's of new shared memory."""
        from layerzero.isolation import arena

        file, pair = arena.make_file(hostile_cases.ARENA), socket.socketpair()
        self.kept.append(pair)
        sides = [
            self.native.worker_open(file, hostile_cases.ARENA, s.fileno(), s.fileno(), 0.0, i == 1)
            for i, s in enumerate(pair)
        ]
        os.close(file)
        return sides[0], sides[1]

    def answer(self, dice: random.Random) -> str:
        """A worker has answered before it was asked, which saves a thread."""
        from layerzero.isolation.protocol import ProtocolError

        parent, worker = self.channels()
        self.native.worker_send(worker, hostile_cases.answer(dice))
        try:
            self.native.worker_call(parent, Side(lambda _: None), 0, (1, 2.0), 0, 30.0)
        except ProtocolError as error:
            said = "wanted" in str(error) and self.hole != "silent"
            return "" if said else f"without a reason: {error}"
        except Exception as error:
            return f"untyped: {type(error).__name__}: {error}"[:300]
        finally:
            self.close()
        return "accepted"

    def request(self, dice: random.Random) -> str:
        parent, worker = self.channels()
        thread = threading.Thread(target=self.serve, args=(worker,), daemon=True)
        thread.start()
        self.native.worker_send(parent, hostile_cases.request(dice))
        said = self.native.worker_receive(parent, 30.0) or b""
        self.kept[-1][0].shutdown(socket.SHUT_RDWR)
        thread.join(30)
        self.close()
        if thread.is_alive():
            return "the worker did not end"
        if not said.startswith(b"\x14ProtocolError") or b"wanted" not in said or self.hole == "silent":
            return f"accepted, or without a reason: {said[:200]!r}"
        return ""

    def serve(self, channel: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            self.native.worker_serve(channel, Side(lambda _: None))

    def close(self) -> None:
        for side in self.kept.pop():
            side.close()

    def refused(self, call: Callable[[], Any]) -> str:
        try:
            call()
        except self.lz.LayerZeroError as error:
            said = error.wanted or "wanted" in str(error)
            return "" if said and self.hole != "silent" else f"without a reason: {type(error).__name__}: {error}"[:300]
        except RecursionError as error:
            return f"untyped: {error}"
        except Exception as error:
            return f"untyped: {type(error).__name__}: {error}"[:300]
        return "accepted"

    def descriptor(self, dice: random.Random) -> str:
        """Reads it as a package's file is read, and hands it to the engine as it was read."""
        path = self.folder / "capabilities.json"
        path.write_bytes(hostile_cases.descriptor(dice))
        return self.refused(lambda: self.register(path))

    def register(self, path: Path) -> None:
        from layerzero.backends import signatures

        self.native.register_backend(json.dumps(signatures.read(path).descriptor), "{}")

    def policy(self, dice: random.Random) -> str:
        path = self.folder / "hostile.yaml"
        path.write_bytes(hostile_cases.policy(dice))
        path.chmod(dice.choice((0o644, 0o644, 0o666)))
        return self.refused(lambda: self.lz.load_config(path))

    def _files(self, suffix: str, content: bytes, dice: random.Random, *, whole: bool) -> Path:
        """Writes a file and its signature; unless `whole`, one of them is wrong."""
        path = self.folder / f"hostile{suffix}"
        signature = path.with_name(path.name + ".sig")
        text = self.native.sign(content, self.pem.encode(), "key").encode()
        kind = -1 if whole else dice.randrange(6)
        if kind == 0:
            text = b""
        elif kind == 1:  # of other bytes
            text = self.native.sign(content + b"x", self.pem.encode(), "key").encode()
        elif kind == 2:  # by a key that nobody trusts
            text = self.native.sign(content, self.other_pem.encode(), "key").encode()
        elif kind == 3:  # another key's signature in the name of the trusted one
            document = json.loads(self.native.sign(content, self.other_pem.encode(), "key"))
            text = json.dumps(document | {"key": self.public}).encode()
        elif kind == 4:  # the file was changed after it was signed
            at = dice.randrange(len(content))
            content = content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :]
        elif kind == 5:
            document = json.loads(text)
            key = dice.choice(list(document))
            text = json.dumps(document | {key: dice.choice(hostile_cases.WRONG[:6])}).encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        signature.write_bytes(text)
        if kind == 0:
            signature.unlink()
        return path

    def plugin(self, dice: random.Random) -> str:
        bad = dice.randrange(2)
        library = self._files(".so", self.library, dice, whole=bad == 1)
        rules = self._files(".json", self.rules, dice, whole=bad == 0)
        return self.refused(lambda: self.native.load_plugin(str(library), str(rules)))

    def signature(self, dice: random.Random) -> str:
        path = self._files(".records.json", b'{"schema_version": "1.0", "records": []}', dice, whole=False)
        return self.refused(lambda: self.native.check_signed(str(path), path.read_bytes(), "records"))


KINDS = {"descriptor": 3, "policy": 2, "plugin": 1, "signature": 2, "answer": 1, "request": 1}  # shares of ten


def batch(first: int, last: int, seed: int, hole: str) -> None:
    """Runs cases and writes a line for each: its number before it runs, and a finding after it."""
    warnings.simplefilter("ignore")
    kinds = [kind for kind, share in KINDS.items() for _ in range(share)]
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), hole)
        for number in range(first, last):
            print(f"case {number}", flush=True)
            if hole == "crash" and number % 100 == 50:
                os.abort()
            if hole == "hang" and number == 50:
                import time

                time.sleep(3600)
            dice = random.Random(seed * 1_000_003 + number)
            kind = kinds[number % 10]
            found = getattr(run, kind)(dice)
            if kind == "policy":
                run.lz.configure(security=run.security)
            print(json.dumps({"case": number, "kind": kind, "finding": found}), flush=True)


def lines(process: "subprocess.Popen[str]", limit: float) -> Iterator[str]:
    """Yields the lines that a process writes. TimeoutError: it has begun its cases and writes nothing for `limit` seconds."""
    written: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        assert process.stdout
        for line in process.stdout:
            written.put(line)
        written.put("")

    threading.Thread(target=read, daemon=True).start()
    seconds = 600.0  # for its imports
    while True:
        try:
            line = written.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if not line:
            return
        seconds = limit
        yield line


def outcomes(cases: int, seed: int, hole: str, limit: float) -> Iterator[dict[str, Any]]:
    size, first = 2500, 0  # a process takes as long to start as hundreds of cases to run
    while first < cases:
        last, started, code = min(first + size, cases), None, None
        command = [sys.executable, __file__, "--batch", str(first), str(last), "--seed", str(seed), "--hole", hole]
        env = {k: v for k, v in os.environ.items() if not k.startswith("LAYERZERO_")}
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env) as process,
        ):
            try:
                for line in lines(process, limit):
                    if line.startswith("case "):
                        started = int(line[5:])
                    elif line.startswith("{"):
                        found = json.loads(line)
                        yield found
                        first = found["case"] + 1
                code = process.wait()
            except TimeoutError:
                process.kill()
            errors.seek(0)
            text = errors.read()
        if code == 0:
            first = last
        elif started is None:
            raise SystemExit(f"a process did not begin its cases: {text[-2000:]}")
        else:
            why = f"hung for {limit} s" if code is None else f"the process ended with {code}"
            yield {"case": started, "kind": "process", "finding": why}
            first = max(first, started + 1)  # it may have ended after a case, before the next one began


# What has to be in the findings of a planted hole.
SIGNS = {"unsigned": "accepted", "crash": "the process ended with -6", "silent": "without a reason", "hang": "hung for"}


def controls(options: argparse.Namespace) -> int:
    """Plants each hole. Returns 0 if all were found."""
    found = {}
    for hole, sign in SIGNS.items():
        command = [sys.executable, __file__, "--cases", str(options.cases), "--seed", str(options.seed), "--hole", hole]
        done = subprocess.run([*command, "--limit", str(options.limit)], stdout=subprocess.PIPE, text=True)
        report = json.loads(done.stdout) if done.stdout else {"findings": 0, "first_findings": []}
        seen = [one["finding"] for one in report["first_findings"]]
        found[hole] = {
            "exit_code": done.returncode,
            "findings": report["findings"],
            "example": next((text for text in seen if sign in text), None),
        }
    ok = all(one["exit_code"] == 1 and one["example"] for one in found.values())
    print(json.dumps({"cases": options.cases, "seed": options.seed, "holes": found, "ok": ok}, indent=1))
    return 0 if ok else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=120, help="seconds of a case: after them it has hung")
    parser.add_argument("--hole", choices=("", *SIGNS), default="", help="plant one, which has to be found")
    parser.add_argument("--control", action="store_true", help="plant each hole in turn")
    parser.add_argument("--batch", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        batch(*options.batch, options.seed, options.hole)
        return 0
    if options.control:
        return controls(options)
    refused = dict.fromkeys(KINDS, 0)
    findings = []
    for one in outcomes(options.cases, options.seed, options.hole, options.limit):
        if one["finding"]:
            findings.append(one)
        else:
            refused[one["kind"]] += 1
    report = {
        "cases": options.cases,
        "seed": options.seed,
        "hole": options.hole,
        "refused": refused,
        "findings": len(findings),
        "first_findings": findings[:20],
        "ok": not findings and sum(refused.values()) == options.cases,
    }
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
