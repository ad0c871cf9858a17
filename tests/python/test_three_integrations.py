"""A Transformers model, a diffusers model and vLLM's backend in one process: one policy, one health report, one set of metrics."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import diffusion_models  # noqa: E402
import layerzero as lz  # noqa: E402
import vllm_stand_in  # noqa: E402
from small_llama import tiny  # noqa: E402
from vllm_step import Step  # noqa: E402

FOLDER = Path(sys.prefix) / "diffusers"
OURS = "layerzero.integrations.vllm"
OWN = {"hwy", "x86"}
# Operations that one of the three calls and the others do not, as the calls below are made.
OF = {"vllm": "attention.gqa.decode.block_table", "transformers": "attention.gqa.prefill", "diffusers": "norm.layer"}


@pytest.fixture
def diffusers():
    added = FOLDER.is_dir()
    if added:
        sys.path.append(str(FOLDER))
    try:
        yield pytest.importorskip("diffusers", reason="needs requirements/diffusers.txt in .venv/diffusers: make setup")
    finally:
        if added:
            sys.path.remove(str(FOLDER))


@pytest.fixture
def plugin():
    """The plugin over vLLM where it is importable, else over the stand-ins that are held to its signatures."""
    real = importlib.util.find_spec("vllm") is not None
    made = {} if real else vllm_stand_in.modules()
    sys.modules.update(made)
    try:
        found = {name: importlib.import_module(f"{OURS}.{name}") for name in ("attention", "metadata")}
        yield types.SimpleNamespace(vllm=importlib.import_module("vllm.v1.attention.backend"), **found)
    finally:
        for name in [n for n in sys.modules if n in made or (not real and n.startswith(OURS))]:
            del sys.modules[name]


def selected():
    return {(row.operation, row.kernel_id): row.count for row in lz.metrics().selections}


def failures():
    """What health has of kernels that failed: other tests of the process leave some."""
    health = lz.health()
    return (
        sorted(map(str, health["breakers"])),
        len(health["quarantine"]),
        sum(row.count for row in lz.metrics().failures),
    )


def test_one_policy_health_and_metrics_for_all_three(diffusers, plugin):
    torch.manual_seed(2)
    llama, ids = tiny(), torch.arange(1, 9).reshape(1, 8)
    dit, given = diffusion_models.build("dit")
    step = Step(plugin, [(20, 1), (3, 1)])

    def run():
        with torch.no_grad():
            step.check()  # against attention in float32
            return llama(ids, output_hidden_states=True).logits, diffusion_models.run(dit, given)

    own, failed = run(), failures()
    reports = lz.kernelize(llama), lz.kernelize(dit)
    try:
        assert all(report.replaced for report in reports)

        def kernels_of(**policy):
            before = selected()
            with lz.policy(**policy):
                found = run()
            assert all(torch.allclose(a, b, atol=2e-4) for a, b in zip(found, own, strict=True))
            rows = selected()
            new = [key for key, count in rows.items() if count > before.get(key, 0)]
            return {operation: {kernel for name, kernel in new if name == operation} for operation, _ in new}

        usual = kernels_of(prefer_sources=sorted(OWN))
        assert set(OF.values()) <= set(usual), usual
        changed = kernels_of(avoid_sources=sorted(OWN))
        for library, operation in OF.items():
            assert {k.partition(".")[0] for k in usual[operation]} & OWN, library
            others = changed[operation] - usual[operation]  # some calls have kernels of one library alone
            assert others and not {k.partition(".")[0] for k in others} & OWN, library
        assert failures() == failed
        before = lz.health()["shadow"]
        with lz.shadow(rate=1.0):
            run()
        after = lz.health()["shadow"]
        assert after["wrong"] == before["wrong"] and after["right"] > before["right"] + 3
        assert failures() == failed
    finally:
        lz.unkernelize(llama)
        lz.unkernelize(dit)
