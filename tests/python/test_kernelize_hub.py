"""Kernels of the hub, which Transformers puts in by the library `kernels`, beside LayerZero's: either order, offline."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
kernels = pytest.importorskip("kernels")
if kernels.__file__ is None:  # the clone's folder of that name, which any package on the path comes before
    pytest.skip(
        "needs the package kernels; test_kernelize_neighbours.py runs this file with it", allow_module_level=True
    )

import layerzero as lz  # noqa: E402
import small_llama  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, plan_of  # noqa: E402

CALLS = []


class HubRMSNorm(torch.nn.Module):
    """A layer as the hub has them: no state of its own, `self` is the model's norm."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states):
        CALLS.append(1)
        return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class Repository:
    """Gives a layer without a download."""

    def load(self):
        return HubRMSNorm

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return isinstance(other, Repository)


def tiny():
    """A Llama whose norms can be replaced from the hub, whatever versions of `kernels` this Transformers knows."""
    model = small_llama.tiny()
    norm = type(model.model.norm)
    if not hasattr(norm, "kernel_layer_name"):
        norm = kernels.use_kernel_forward_from_hub("RMSNorm")(type(norm.__name__, (norm,), {}))
        for module in [module for module in model.modules() if isinstance(module, norm.__mro__[1])]:
            module.__class__ = norm
    return model


def use_hub(model):
    mapping = {"RMSNorm": {"cpu": {kernels.Mode.INFERENCE: Repository()}}}
    with kernels.use_kernel_mapping(mapping, inherit_mapping=False):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    CALLS.clear()


def test_hub_first():
    model, expected = tiny(), logits_of(tiny())
    use_hub(model)
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert len(CALLS) == 7 and "RMSNorm" not in report.replaced
    assert report.left["model.norm"] == "its forward was replaced by something else"
    assert report.replaced["Linear"]["calls"]
    lz.unkernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE and len(CALLS) == 14


def test_hub_second():
    model, expected = tiny(), logits_of(tiny())
    report = lz.kernelize(model)
    assert report.replaced["decoder"]["count"] == 1  # the library is there and hinders nothing
    use_hub(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert len(CALLS) == 7 and plan_of(model).why_aside == {"a forward was replaced after kernelize": 1}
    lz.unkernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE and len(CALLS) == 14


def test_without_a_kernel_for_it_the_model_falls_back():
    """`use_kernels` finds none for this device: the model's own code goes on, and so does ours."""
    model, expected = tiny(), logits_of(tiny())
    report = lz.kernelize(model)
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        kernels.kernelize(model, mode=kernels.Mode.INFERENCE, device="cpu")
    assert error(logits_of(model), expected) <= TOLERANCE
    assert not CALLS and report.replaced["Linear"]["calls"]
