"""The cases of hostile.py: descriptors, policies and messages of workers, each invalid by its making. All take the dice that decide."""

import copy
import json
import random
import struct
from collections.abc import Iterator
from typing import Any

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
        value = dice.choice((None, -(2**70), 1e308, "", [[]], {"a": {}}, {"": 0}))
        if at[-1] in ("adapter", "constraints", "priority") and value is None:  # null is as if the key were absent
            value = ""
        return json.dumps(put(DESCRIPTOR, at, value)).encode()
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
        ((*row, "constraints"), [DESCRIPTOR["ops"]["norm.rms"][0]["constraints"][0]] * 25000),
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
