"""Hostile descriptors, policies, plugins, signatures and messages of workers: each must be refused with its reason, and none may crash.

python bench/hostile.py --cases 10000 > bench/results/hostile-<machine>.json
python bench/hostile.py --cases 400 --hole unsigned      (a planted hole, which the same script must find: exit code 1)

Every case is invalid by its making: a valid text with a change that breaks it. Cases run in processes of their own, many
in each, so that a crash is one finding, and the next process goes on after it. The JSON has for each kind how many were
refused, and up to twenty of those that were accepted, crashed, hung or were refused without saying what was wanted.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HOLES = ("unsigned", "crash", "silent", "hang")
DESCRIPTOR = {
    "schema_version": "1.0",
    "backend": "hostile",
    "backend_version": "1",
    "platform": "any",
    "requires": [{"import": "hostile", "install": "pip install hostile"}],
    "ops": {
        "norm.rms": [
            {
                "kernel_id": "hostile.norm",
                "adapter": "hostile:rms_norm",
                "dtypes": ["float32"],
                "requires_layouts": ["any"],
                "accepts": ["weight"],
                "constraints": [{"field": "hidden", "relation": "<=", "operand": 4096}],
                "priority": 100,
            }
        ]
    },
}
POLICY = {"version": 1, "strict_mode": True, "cache": {"max_size": 12}, "security": {"require_signatures": "plugins"}}
DEEP = "[" * 5000 + "]" * 5000
# Values that fit no key of a policy or descriptor that the cases give them to.
WRONG = (None, -(2**70), 1e308, "", "\x00", "\udcff", "x" * 70000, [[]], {"a": {}}, [None], {"": 0}, "../../etc/passwd")


# ---- texts


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*at, key))


def put(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    document = copy.deepcopy(document)
    target = document
    for key in at[:-1]:
        target = target[key]
    target[at[-1]] = value
    return document


def broken_text(text: str, dice: random.Random) -> bytes:
    """Returns a text of JSON that is none any more, or too large or deep to be read."""
    kind = dice.randrange(7)
    data = text.encode("utf-8", "surrogatepass")
    if kind == 0:
        return data[: dice.randrange(len(data))]
    if kind == 1:
        at = dice.randrange(len(data))
        return data[:at] + b"\xff\xfe" + data[at:]
    if kind == 2:
        return text.replace("{", "{" + '"a":' + DEEP + ",", 1).encode()
    if kind == 3:
        return data.replace(b"{", b'{"description": "' + b"x" * (1 << 21) + b'", ', 1)
    if kind == 4:
        return data.replace(b'"schema_version"', b'"backend": "twice", "schema_version"', 1).replace(b'"version"', b'"version": 1, "version"', 1)  # fmt: skip
    if kind == 5:
        return data[:-1] + b"\x00}" + bytes(dice.randrange(256) for _ in range(20))
    return b"[" * dice.randrange(1, 100000)


def descriptor(dice: random.Random) -> bytes:
    kind = dice.randrange(5)
    if kind == 0:
        return broken_text(json.dumps(DESCRIPTOR), dice)
    row = ("ops", "norm.rms", 0)
    if kind == 1:  # a value of the wrong kind or out of range
        at = dice.choice(
            [p for p in paths(DESCRIPTOR) if p and p[0] != "requires" and p[-1] != "accepts"]
        )  # null: none
        return json.dumps(
            put(DESCRIPTOR, at, dice.choice((None, -(2**70), 1e308, "", [[]], {"a": {}}, {"": 0})))
        ).encode()
    if kind == 2:  # a key that nobody knows
        at = dice.choice([(), row, (*row, "constraints", 0)])
        return json.dumps(put(DESCRIPTOR, (*at, f"x_{dice.randrange(10**6)}"), True)).encode()
    if kind == 3:  # what is needed is missing
        document = copy.deepcopy(DESCRIPTOR)
        key = dice.choice(("schema_version", "backend", "backend_version", "platform", "ops", "kernel_id", "dtypes"))
        (document if key in document else document["ops"]["norm.rms"][0]).pop(key)
        return json.dumps(document).encode()
    name = f"x{dice.randrange(10**6)}"
    changes = [
        (("ops",), {name: DESCRIPTOR["ops"]["norm.rms"]}),
        ((*row, "constraints", 0, "field"), name),
        ((*row, "constraints", 0, "relation"), name),
        ((*row, "dtypes"), [name]),
        ((*row, "requires_layouts"), [name]),
        (("platform",), name),
        (("schema_version",), name),
        (("ops", "norm.rms"), DESCRIPTOR["ops"]["norm.rms"] * 2),
        ((*row, "constraints"), [DESCRIPTOR["ops"]["norm.rms"][0]["constraints"][0]] * 200000),
        ((*row, "workspace_bytes"), "(" * dice.randrange(100, 50000) + name),
    ]
    return json.dumps(put(DESCRIPTOR, *dice.choice(changes))).encode()


def policy(dice: random.Random) -> bytes:
    kind = dice.randrange(4)
    if kind == 0:
        at = dice.choice([p for p in paths(POLICY) if p])
        return json.dumps(put(POLICY, at, dice.choice(((), "\x00", 1e308, [[1]], "x" * 70000)))).encode()
    if kind == 1:
        at = dice.choice([(), ("cache",), ("security",)])
        return json.dumps(put(POLICY, (*at, f"x_{dice.randrange(10**6)}"), 1)).encode()
    if kind == 2:
        bombs = [
            "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
            "<<: {version: 1}\n",
            "version: !!python/object/apply:os.system [id]\n",
            "version: 1\nversion: 1\n",
            "rules: [{match: {sm: '>=90'}, run: id}]\n",
            "cache_dir: " + "a" * (1 << 20) + "\n",
            "security: {trusted_keys: [" + "f" * dice.randrange(65, 5000) + "]}\n",
            "security: {require_signatures: " + str(dice.randrange(10**6)) + "}\n",
            "{" * dice.randrange(20, 20000),
            "- " * dice.randrange(20, 20000),
            f"%TAG ! tag:{dice.randrange(10**6)}\n---\nversion: !x 1\n",
            f"--- {{version: 1}}\n--- {{version: {dice.randrange(10**6)}}}\n",
        ]
        return dice.choice(bombs).encode()
    data = b"version: 1\nstrict_mode: " + bytes([dice.randrange(128, 256), 0x28]) + b"\n"
    return dice.choice((data, b"\x00" * dice.randrange(1, 1000), b"version: 1\n" + b"#" * (1 << 20)))


# ---- messages between a process and a worker (src/worker/message.h)

ARENA, DATA = 2**20, 256 * 1024


def tensor(
    shape: tuple[int, ...], offset: int = DATA, strides: tuple[int, ...] = (), dims: int = -1, bits: int = 32
) -> bytes:
    strides = strides or (1,) * len(shape)
    head = struct.pack("<BBBBBQ", 5, 2, bits, 1, len(shape) if dims < 0 else dims, offset)
    return head + struct.pack(f"<{2 * len(shape)}q", *shape, *strides)


def broken_values(dice: random.Random) -> tuple[int, bytes]:
    """Returns a count and values of which one breaks the protocol."""
    far, many = dice.randrange(ARENA, 2**62), dice.randrange(2, 2**62)
    broken = [
        (1, tensor((4,), far)),
        (1, tensor((4,), DATA + dice.randrange(1, 64))),
        (1, tensor((4,), dice.randrange(0, DATA - 64, 64))),
        (1, tensor((many, many), DATA)),
        (1, tensor((2, 2), DATA, (many, many))),
        (1, tensor((-many,), DATA)),
        (1, tensor((2, 2), DATA, (1, -many))),
        (1, tensor((4,), DATA, dims=dice.randrange(2, 256))),
        (1, tensor((4,), DATA, bits=dice.choice((0, 1, 7, 13, 33, 255)))),
        (1, struct.pack("<B", dice.randrange(7, 256)) + b"x" * dice.randrange(20)),
        (1, struct.pack("<BI", 4, dice.randrange(8193, 2**32)) + b"x" * 9000),
        (dice.randrange(65, 256), b"\0" * 300),
        (2, b"\0" + tensor((4,))[: dice.randrange(1, 20)]),
        (1, tensor((4,)) + b"\0" * dice.randrange(1, 9)),
    ]
    return dice.choice(broken)


def answer(dice: random.Random) -> bytes:
    """Returns what a worker may not answer to a call."""
    count, values = broken_values(dice)
    message = struct.pack("<BBIB", 19, count != 1, 0, count) + values
    others = [
        bytes([dice.choice([k for k in range(256) if k not in (18, 19, 20)])]) + b"x" * dice.randrange(50),
        struct.pack("<BQ", 18, dice.randrange(ARENA + 1, 2**64)),
        b"\x14" + broken_text('{"type": "ValueError"}', dice)[:60000],
        struct.pack("<BBIB", 19, 0, 0, 1) + struct.pack("<BI", 4, 1) + b"a",
        struct.pack("<BBIB", 19, 0, dice.randrange(1, 2**32), 1) + b"\0",
        message[: dice.randrange(1, 7)],
    ]
    return message if dice.randrange(2) else dice.choice(others)


def request(dice: random.Random) -> bytes:
    """Returns a call that a worker may not run."""
    count, values = broken_values(dice)
    head = struct.pack("<BHHQQ", 2, 0, 1, DATA, 4096)
    if dice.randrange(4) == 0:
        return struct.pack("<BHHQQB", 2, dice.randrange(1, 2**16), 1, DATA, 4096, 0)
    return head + bytes([count]) + values


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

        file, pair = arena.make_file(ARENA), socket.socketpair()
        self.kept.append(pair)
        sides = [self.native.worker_open(file, ARENA, s.fileno(), s.fileno(), 0.0, i == 1) for i, s in enumerate(pair)]
        os.close(file)
        return sides[0], sides[1]

    def answer(self, dice: random.Random) -> str:
        """A worker has answered before it was asked, which saves a thread."""
        from layerzero.isolation.protocol import ProtocolError

        parent, worker = self.channels()
        self.native.worker_send(worker, answer(dice))
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
        self.native.worker_send(parent, request(dice))
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
        path.write_bytes(descriptor(dice))
        return self.refused(lambda: self.register(path))

    def register(self, path: Path) -> None:
        from layerzero.backends import signatures

        self.native.register_backend(json.dumps(signatures.read(path).descriptor), "{}")

    def policy(self, dice: random.Random) -> str:
        path = self.folder / "hostile.yaml"
        path.write_bytes(policy(dice))
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
            text = json.dumps(document | {key: dice.choice(WRONG[:6])}).encode("utf-8", "surrogatepass")
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


def outcomes(cases: int, seed: int, hole: str, limit: float) -> Iterator[dict[str, Any]]:
    size, first = 250, 0
    while first < cases:
        last = min(first + size, cases)
        command = [sys.executable, __file__, "--batch", str(first), str(last), "--seed", str(seed), "--hole", hole]
        env = {k: v for k, v in os.environ.items() if not k.startswith("LAYERZERO_")}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=env)
            code, text, errors = done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            code, text, errors = None, (error.stdout or b"").decode(), ""
        started = first - 1
        for line in text.splitlines():
            if line.startswith("case "):
                started = int(line[5:])
            elif line.startswith("{"):
                found = json.loads(line)
                yield found
                started = found["case"]
                first = started + 1
        if code == 0:
            first = last
        elif started < first:
            raise SystemExit(f"a process did not begin its cases: {errors[-2000:]}")
        else:
            why = f"hung for {limit} s" if code is None else f"the process ended with {code}"
            yield {"case": started, "kind": "process", "finding": why}
            first = started + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds for 250 cases")
    parser.add_argument("--hole", choices=("", *HOLES), default="", help="plant one, which has to be found")
    parser.add_argument("--batch", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.batch:
        batch(*options.batch, options.seed, options.hole)
        return 0
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
