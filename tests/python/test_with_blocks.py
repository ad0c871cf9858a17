"""The `with` blocks of the package, used in another order than `with` does: left before they are entered, entered twice."""

import layerzero as lz
import pytest

torch = pytest.importorskip("torch")

X, W = torch.ones(4, 8), torch.ones(8)
BLOCKS = {
    "observe": lambda: lz.observe(lambda run: None),
    "require": lambda: lz.require(kernels=["*"]),
    "report": lambda: lz.report(),
    "record": lambda: lz.record(),
    "policy": lambda: lz.policy(deterministic=True),
    "shadow": lambda: lz.shadow(0.0),
    "compile_references": lambda: lz.compile_references(),
    "trace": lambda: lz.trace(),
}
ONCE = ("require", "report", "record", "compile_references")  # not open twice at a time


@pytest.fixture(params=BLOCKS)
def name(request):
    if request.param == "trace":
        pytest.importorskip("opentelemetry")
    return request.param


def test_a_block_that_was_not_entered_is_not_left(name):
    block = BLOCKS[name]()
    for _ in range(2):
        with pytest.raises(lz.InvalidRequestError, match="one that is not") as caught:
            block.__exit__(None, None, None)
        assert caught.value.field == name
        with block:  # works all the same, and is closed afterwards
            lz.rms_norm(X, W)


def test_a_block_may_be_entered_again_after_its_end(name):
    block = BLOCKS[name]()
    for _ in range(2):
        with block as entered:
            lz.rms_norm(X, W)
        assert entered is block


def test_a_block_that_is_open(name):
    block = BLOCKS[name]()
    with block:
        if name in ONCE:
            with pytest.raises(lz.InvalidRequestError, match=f"{name}: wanted"), block:
                raise AssertionError("entered twice")
        else:
            with block:
                lz.rms_norm(X, W)
        lz.rms_norm(X, W)
    with pytest.raises(lz.InvalidRequestError, match="one that is not"):
        block.__exit__(None, None, None)


def test_another_block_of_the_kind_stays_open():
    def deterministic():
        return lz.policy_in_force()["keys"]["deterministic"]["value"]

    assert not deterministic()
    with lz.policy(deterministic=True):
        with pytest.raises(lz.InvalidRequestError, match="policy: wanted a block"):
            lz.policy(deterministic=False).__exit__(None, None, None)
        assert deterministic()
    assert not deterministic()
    with lz.record() as recording:
        with pytest.raises(lz.InvalidRequestError, match="record: wanted a block"):
            lz.record().__exit__(None, None, None)
        lz.rms_norm(X, W)
    assert [call.name for call in recording.workload.calls] == ["rms_norm"]


def test_scopes_of_generators_end_in_any_order():
    def scoped(**keys):
        with lz.policy(**keys):
            yield

    before = lz.policy_in_force()["keys"]
    one, two = scoped(deterministic=True), scoped(strict_mode=True)
    next(one), next(two)
    one.close()
    inside = lz.policy_in_force()["keys"]
    assert inside["strict_mode"]["value"] and not inside["deterministic"]["value"]
    two.close()
    assert lz.policy_in_force()["keys"] == before


def test_a_run_is_counted_once_by_require():
    block = lz.require(kernels=["*"])
    with block:
        lz.rms_norm(X, W)
        with pytest.raises(lz.InvalidRequestError, match="leave this one first"):
            block.__enter__()
    assert [run["runs"] for run in block.ran] == [1]
