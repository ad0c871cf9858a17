"""Random calls of every operation, drawn from its contract by the engine: the torch reference and the binding against the FP64
reference, and what a broken call raises. Hypothesis chooses the seeds; the line that a failure prints reproduces it.
"""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from conformance_calls import call_door, problems, with_written  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from layerzero import _layerzero as binding  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.torch.references import call_reference  # noqa: E402
from operation_cases import arguments_of  # noqa: E402

NAMES = sorted(contracts())
seeds = st.integers(min_value=0, max_value=2**63)


def quick(examples):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None)


def is_defined(name, line):
    """False where the definition leaves the result open: random numbers of torch's own, equal slots, and what a weight that
    is not finite does beside the padding."""
    slots = arguments_of(name, line)["slots"] if name.endswith("append_paged") else torch.empty(0)
    kept = slots[slots >= 0]
    return (
        "dropout_p" not in line
        and kept.unique().numel() == kept.numel()
        and not (name.startswith("conv") and "@nan" in line.partition(" weight=")[2].partition(" ")[0])
    )


def call_torch(name, line):
    arguments = arguments_of(name, line)
    layout = arguments.pop("layout", None)
    return with_written(name, call_reference(name, arguments, layout), arguments)


@pytest.mark.parametrize("name", NAMES)
def test_torch_reference_and_door_agree_with_fp64(name):
    @quick(30)
    @given(seeds)
    def check(seed):
        line = binding.verify_random(name, seed)
        if not line or not is_defined(name, line):
            return
        try:
            got = call_door(name, line, kernel=None)
        except lz.KernelExecutionError:  # data that every kernel refuses when it runs, the torch reference too
            with pytest.raises((lz.KernelExecutionError, IndexError, RuntimeError)):
                call_torch(name, line)
            return
        except lz.LayerZeroError:
            return  # no kernel takes it
        assert problems(name, line, got) == [], f"the binding: {line}"
        assert problems(name, line, call_torch(name, line)) == [], f"the torch reference: {line}"

    check()


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_call_is_an_error_that_says_what_to_do(name):
    @quick(20)
    @given(seeds)
    def check(seed):
        line = binding.verify_random(name, seed, True)
        if not line:
            return
        with pytest.raises(lz.LayerZeroError) as error:
            call_door(name, line, kernel=None)
        text = str(error.value)
        assert any(p["name"] in text for p in contracts()[name]["params"]), f"{line}\n{text}"
        assert "wanted" in text and "got" in text, f"{line}\n{text}"

    check()
