"""Messages of JSON: what is written is read, and anything else is refused with ProtocolError, never another error. Messages of
calls are C++: tests/worker/message_test.cpp and tests/fuzz/parsers_test.cpp.
"""

import os
import random

import pytest

torch = pytest.importorskip("torch")

from isolated import sides  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.isolation import failures, protocol  # noqa: E402
from layerzero.isolation.protocol import Kind, ProtocolError, Unsendable  # noqa: E402

WARNING = {"category": "UserWarning", "text": "t", "file": "f.py", "line": 3}
READERS = {
    "warnings": (protocol.read_warnings, protocol.warnings_text([WARNING])),
    "error": (
        lambda m: protocol.read_json(m, Kind.ERROR, **failures.FIELDS),
        protocol.json_message(Kind.ERROR, failures.document_of(ValueError("x"))),
    ),
}


def test_messages_are_read_as_they_were_written():
    assert protocol.read_warnings(protocol.warnings_text([WARNING])) == [WARNING]
    assert protocol.warnings_text([]) == b""
    assert len(protocol.read_warnings(protocol.warnings_text([WARNING] * 99))) == protocol.MAX_WARNINGS
    document = protocol.read_json(READERS["error"][1], Kind.ERROR, **failures.FIELDS)
    assert document["type"] == "ValueError" and document["text"] == "x"
    with pytest.raises(ProtocolError, match="kind LOADED"):
        protocol.read_json(READERS["error"][1], Kind.LOADED, error=str)


@pytest.mark.parametrize("name", READERS)
def test_broken_messages_are_refused(name):
    """Every prefix, and 20,000 random changes: read, or refused by ProtocolError."""
    reader, message = READERS[name]
    for length in range(len(message)):
        with pytest.raises(ProtocolError):
            reader(message[:length])
    rng, refused = random.Random(1), 0
    for _ in range(20_000):
        broken = bytearray(message)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            reader(bytes(broken))
        except ProtocolError:
            refused += 1
    assert refused > 1000  # the control: changes are noticed at all


def test_messages_cross_and_the_end_of_the_other_side_is_an_error():
    parent, worker, file, (_, theirs) = sides()
    assert _layerzero.worker_receive(worker, 0.01) is None
    for message in (b"a", b"x" * 65536):
        _layerzero.worker_send(parent, message)
        assert _layerzero.worker_receive(worker, 1.0) == message
        _layerzero.worker_send(worker, message)
        assert _layerzero.worker_receive(parent, 1.0) == message
    with pytest.raises(Unsendable):
        _layerzero.worker_send(parent, b"x" * 65537)
    theirs.close()
    with pytest.raises(EOFError):
        _layerzero.worker_receive(parent, 1.0)
    with pytest.raises(OSError):
        os.ftruncate(file, 0)  # sealed: no access of the other side is past its end
    os.close(file)


def test_a_side_that_is_no_worker_is_refused():
    import mmap

    parent, worker, file, _sockets = sides()
    memory = mmap.mmap(file, 4096)
    memory[0:8] = bytes(8)
    _layerzero.worker_send(worker, b"a")
    with pytest.raises(ProtocolError, match="number"):
        _layerzero.worker_receive(parent, 1.0)
    os.close(file)
