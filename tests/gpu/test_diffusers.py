"""Models of diffusers on a device: their forwards as CUDA graphs give the results of the calls."""

import sys
from pathlib import Path

import layerzero as lz
import pytest
import torch

pytest.importorskip("diffusers", reason="needs requirements/diffusers.txt on the Python path")
sys.path.append(str(Path(__file__).parents[1] / "python/support"))

import diffusion_models  # noqa: E402


def moved(given, dtype):
    return {
        name: value.to("cuda", dtype if value.is_floating_point() else None) if torch.is_tensor(value) else value
        for name, value in given.items()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", diffusion_models.NAMES)
def test_replays_have_the_results_of_the_model(name, dtype):
    model, given = diffusion_models.build(name)
    model, given = model.to("cuda", dtype), moved(given, dtype)
    report = lz.kernelize(model)
    results = []
    for scale in (1.0, 1.0, 1.0, 2.0):
        scaled = {key: scale * value if key in ("hidden_states", "sample") else value for key, value in given.items()}
        results.append((diffusion_models.run(model, scaled), scaled))
    assert report.captured["calls"] == 2, str(report)
    lz.unkernelize(model)
    for result, scaled in results:
        expected = diffusion_models.run(model, scaled)
        bar = 1e-3 if dtype == torch.float32 else 5e-2  # convolutions of float32 are TF32
        assert (result.double() - expected.double()).norm() <= bar * expected.double().norm()


def test_a_weight_that_is_written_is_read_and_a_replaced_one_drops_the_graph():
    model, given = diffusion_models.build("dit")
    model, given = model.to("cuda"), moved(given, torch.float32)
    report = lz.kernelize(model)
    for _ in range(3):
        diffusion_models.run(model, given)
    with torch.no_grad():
        model.proj_out_2.weight.mul_(2.0)
    written = diffusion_models.run(model, given)
    model.proj_out_2.weight = torch.nn.Parameter(0.5 * model.proj_out_2.weight.detach())
    replaced = [diffusion_models.run(model, given) for _ in range(3)][-1]
    assert report.captured["calls"] >= 3
    lz.unkernelize(model)
    with torch.no_grad():
        model.proj_out_2.weight.mul_(2.0)
    torch.testing.assert_close(written, diffusion_models.run(model, given), rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        model.proj_out_2.weight.mul_(0.5)
    torch.testing.assert_close(replaced, diffusion_models.run(model, given), rtol=1e-3, atol=1e-3)
