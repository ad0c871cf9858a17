"""Messages: what is written is read, and anything else is refused with ProtocolError, never another error."""

import random

import pytest

torch = pytest.importorskip("torch")

from layerzero.isolation import arena, failures, protocol  # noqa: E402
from layerzero.isolation.protocol import Call, Kind, Place, ProtocolError, Unsendable  # noqa: E402

PLACE = Place(0, (2, 3), (3, 1), protocol.DATA)
HANDLE = (0, b"m" * 64, 1024, 0, b"counter", 3, b"event", True)
ARGUMENTS = [PLACE, None, 7, -2.5, True, "exact", PLACE._replace(handle=HANDLE)]
CALL = Call(3, protocol.arguments_body(ARGUMENTS), 4, 262144, 4096)
WARNING = {"category": "UserWarning", "text": "t", "file": "f.py", "line": 3}
READERS = {
    lambda m: protocol.read_arguments(protocol.read_call(m).body): protocol.call_message(CALL),
    protocol.read_room: protocol.room_message(262144, 10),
    protocol.read_need: protocol.need_message(10),
    protocol.read_result: protocol.result_message([PLACE, None], True, [WARNING]),
    lambda m: protocol.read_json(m, **failures.FIELDS): protocol.json_message(
        Kind.ERROR, failures.document_of(ValueError("x"))
    ),
}


def test_messages_are_read_as_they_were_written():
    assert protocol.read_call(protocol.call_message(CALL)) == CALL
    assert protocol.read_arguments(CALL.body) == ARGUMENTS
    assert protocol.read_result(READERS[protocol.read_result]) == ([PLACE, None], True, [WARNING])
    assert (
        protocol.read_room(protocol.room_message(5, 6)) == (5, 6) and protocol.read_need(protocol.need_message(9)) == 9
    )


@pytest.mark.parametrize("reader", READERS, ids=lambda r: getattr(r, "__name__", "json"))
def test_broken_messages_are_refused(reader):
    """Every prefix, a byte too many, and 20,000 random changes: read, or refused by ProtocolError."""
    message = READERS[reader]
    for length in range(len(message)):
        with pytest.raises(ProtocolError):
            reader(message[:length])
    if reader is not protocol.read_json:
        with pytest.raises(ProtocolError):
            reader(message + b"\x01")
    rng, refused = random.Random(1), 0
    for _ in range(20_000):
        broken = bytearray(message)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            reader(bytes(broken))
        except ProtocolError:
            refused += 1
    if len(message) > 20:  # the others are numbers, which may have any value
        assert refused > 1000  # the control: changes are noticed at all


@pytest.mark.parametrize(
    "value",
    ["x" * (protocol.MAX_TEXT + 1), [1], object(), PLACE._replace(shape=(1,) * 17, strides=(1,) * 17), b"raw"],
    ids=lambda v: type(v).__name__,
)
def test_values_without_a_form_are_not_sent(value):
    with pytest.raises(Unsendable):
        protocol.arguments_body([value])


def test_messages_and_arguments_have_limits():
    for arguments in ([None] * 65, ["x" * 8000] * 20):
        with pytest.raises(Unsendable):
            protocol.arguments_body(arguments)


def test_places_outside_of_their_block_are_refused():
    file = arena.make_file(2**20)
    memory = arena.Memory(file, 2**20)
    begin, end = protocol.DATA, protocol.DATA + 4096
    assert memory.check(PLACE, begin, end) == 24
    outside = [
        PLACE._replace(offset=begin - 64),
        PLACE._replace(offset=end),
        PLACE._replace(offset=begin + 4),
        PLACE._replace(shape=(1000, 3)),
        PLACE._replace(strides=(2**60, 1)),
        PLACE._replace(offset=2**63),
        PLACE._replace(dtype=20, shape=(2**40, 3)),
    ]
    for place in outside:
        with pytest.raises(ProtocolError):
            memory.check(place, begin, end)
    import os

    with pytest.raises(OSError):
        os.ftruncate(file, 0)  # sealed: no access of the other side is past its end
    os.close(file)


def test_blocks_do_not_overlap_and_are_joined_again():
    blocks, rng, held = arena.Blocks(2**22), random.Random(3), {}
    for _ in range(5000):
        if held and rng.random() < 0.5:
            offset = rng.choice(list(held))
            held.pop(offset)
            (blocks.later.append if rng.random() < 0.5 else blocks.release)(offset)
            continue
        size = rng.randint(1, 60_000)
        try:
            offset = blocks.allocate(size)
        except arena.Full:
            continue
        if rng.random() < 0.3:
            size = rng.randint(1, size)
            blocks.shrink(offset, size)
        for other, taken in held.items():
            assert offset + size <= other or other + taken <= offset
        assert offset >= protocol.DATA and offset + size <= 2**22 and offset % 64 == 0
        held[offset] = size
    for offset in held:
        blocks.release(offset)
    blocks.allocate(1)
    assert sum(size for _, size in blocks.free) + 64 == 2**22 - protocol.DATA and len(blocks.free) == 1


@pytest.mark.parametrize(
    ("shape", "strides", "wanted"),
    [
        ((2, 3), (3, 1), (3, 1)),
        ((2, 3), (1, 2), (1, 2)),
        ((2, 3), (40, 4), (3, 1)),
        ((2, 3), (4, 40), (1, 2)),
        ((2, 3), (0, 1), (3, 1)),
        ((2, 1, 3), (3, 99, 1), (3, 1, 1)),
        ((), (), ()),
    ],
)
def test_dense_strides_keep_the_order(shape, strides, wanted):
    assert arena.dense_strides(shape, strides) == wanted
