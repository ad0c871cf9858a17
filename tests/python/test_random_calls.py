"""Random calls of every operation, drawn from its contract by the engine: the torch reference and the door against the FP64
reference, and what a broken call raises. Hypothesis chooses the seeds; the line that a failure prints reproduces it.
"""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from conformance_calls import arguments_of, call_door, problems  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layerzero import _layerzero as door  # noqa: E402
from layerzero._contracts import contracts  # noqa: E402
from layerzero._references import call_reference  # noqa: E402

NAMES = sorted(contracts())
seeds = st.integers(min_value=0, max_value=2**63)


def quick(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("name", NAMES)
def test_torch_reference_and_door_agree_with_fp64(name):
    @quick(40)
    @given(seeds)
    def check(seed):
        line = door.verify_random(name, seed)
        try:
            got = call_door(name, line, kernel=None)
        except (lz.InvalidRequestError, lz.KernelExecutionError):
            return  # refused, or indices outside their tensor: the C++ tests hold all kernels to one answer
        case = door.verify_case(name, line)
        reference = call_reference(name, arguments_of(case), case["layout"])
        assert problems(name, line, got) == [], f"the door: {line}"
        assert problems(name, line, reference) == [], f"the torch reference: {line}"

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_call_is_an_error_that_says_what_to_do(name):
    @quick(25)
    @given(seeds)
    def check(seed):
        line = door.verify_random(name, seed, True)
        if not line:
            return
        with pytest.raises(lz.LayerZeroError) as error:
            call_door(name, line, kernel=None)
        text = str(error.value)
        assert any(p["name"] in text for p in contracts()[name]["params"]), f"{line}\n{text}"
        assert "wanted" in text and "got" in text, f"{line}\n{text}"

    check()
