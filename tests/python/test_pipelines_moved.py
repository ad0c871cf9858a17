"""Models of pipelines that LAYERZERO_PIPELINES=1 kernelizes when they are built, and that are moved or get another dtype afterwards."""

import copy
import pickle
import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import diffusion_models  # noqa: E402
import layerzero as lz  # noqa: E402
from layerzero.integrations import pipelines  # noqa: E402

FOLDER = Path(sys.prefix) / "diffusers"  # scripts/setup.sh puts requirements/diffusers.txt there


@pytest.fixture
def built(monkeypatch):
    """A pipeline of diffusers that is kernelized when it is built; nothing may warn."""
    if FOLDER.is_dir():
        sys.path.append(str(FOLDER))
    diffusers = pytest.importorskip(
        "diffusers", reason="needs requirements/diffusers.txt in .venv/diffusers: make setup"
    )
    pipelines.serve_pipelines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            transformer, given = diffusion_models.build("dit")
            before = dict(transformer.__dict__)
            pipeline = diffusers.DiTPipeline(transformer, diffusion_models.build("vae")[0], diffusers.DDIMScheduler())
            yield pipeline, given, before
    finally:
        pipelines.serve_pipelines(False)
        if FOLDER.is_dir():
            sys.path.remove(str(FOLDER))


def replaced(model):
    from layerzero.integrations.diffusers.kernelizing import _MARK

    mark = model.__dict__.get(_MARK)
    return None if mark is None else set(mark.report.replaced)


def as_if_bfloat16_were_cuda(monkeypatch):
    """A stand-in for a device: what is chosen for a CUDA device is chosen for models in bfloat16."""
    from layerzero.integrations.diffusers import kernelizing

    def device_of(model):
        return "cuda" if next(model.parameters()).dtype is torch.bfloat16 else "cpu"

    monkeypatch.setattr(kernelizing, "_device_of", device_of)


def test_parts_are_those_of_the_device_that_a_pipeline_is_moved_to(built, monkeypatch):
    as_if_bfloat16_were_cuda(monkeypatch)
    pipeline, given, _ = built
    on_cpu = replaced(pipeline.transformer)
    assert {"SiLU", "GELU", "attention"} <= on_cpu
    pipeline.to(torch.bfloat16)
    assert replaced(pipeline.transformer) == on_cpu - {"SiLU", "GELU"}
    assert "attention" in replaced(pipeline.vae) and "SiLU" not in replaced(pipeline.vae)
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in given.items()}
    found = diffusion_models.run(pipeline.transformer, half)
    lz.unkernelize(pipeline)
    expected = diffusion_models.run(pipeline.transformer, half)
    assert (found - expected).norm() <= 3e-2 * expected.norm()


def test_a_move_to_where_it_is_changes_nothing(built):
    pipeline, _, _ = built
    mark = pipeline.transformer.__dict__["_layerzero_kernelized"]
    pipeline.to("cpu")
    pipeline.transformer.float()
    assert pipeline.transformer.__dict__["_layerzero_kernelized"] is mark


def test_a_model_without_memory_waits(built):
    model = built[0].transformer
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    model.to("meta")
    assert replaced(model) is None
    model.to_empty(device="cpu")
    model.load_state_dict(kept)
    assert {"SiLU", "attention"} <= replaced(model)
    model.to(torch.float64)
    assert replaced(model)


def test_undone_models_stay_so_wherever_they_move(built):
    pipeline, given, before = built
    model = pipeline.transformer
    assert lz.unkernelize(pipeline) and {k: id(v) for k, v in model.__dict__.items()} == {
        k: id(v) for k, v in before.items()
    }
    pipeline.to(torch.float64)
    assert replaced(model) is None
    from layerzero.integrations.diffusers import unkernelize

    lz.kernelize(pipeline)
    pipelines.moves.follow(model, lz.kernelize)
    unkernelize(model)
    model.float()
    assert replaced(model) is None and "_apply" not in model.__dict__


def test_a_model_that_hooks_move_keeps_its_parts(built):
    model = built[0].transformer
    mark = model.__dict__["_layerzero_kernelized"]
    model._hf_hook = object()
    model.to(torch.bfloat16)
    assert model.__dict__["_layerzero_kernelized"] is mark


def test_copies_follow_their_own_moves(built):
    model, given = built[0].transformer, built[1]
    expected = diffusion_models.run(model, given)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied.double()
        assert next(model.parameters()).dtype is torch.float32 and replaced(copied)
        wide = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
        assert torch.allclose(diffusion_models.run(copied, wide).float(), expected, atol=1e-4)
    shallow = copy.copy(model)
    assert "_apply" not in shallow.__dict__


def test_a_pipeline_of_transformers(monkeypatch):
    pytest.importorskip("transformers")
    from layerzero.integrations.transformers.kernelize import is_kernelized
    from small_llama import tiny

    model, ids = tiny(), torch.arange(9)[None]
    assert pipelines.moves.follow(model, pipelines._of_pipeline)
    pipelines._of_pipeline(model)
    reports = []
    monkeypatch.setattr(pipelines, "kernelize", lambda model, quiet: reports.append(lz.kernelize(model, quiet=quiet)))
    model.to(torch.bfloat16)
    assert is_kernelized(model) and len(reports) == 1
    with torch.no_grad():
        found, expected = (one(ids).logits.float() for one in (model, tiny().to(torch.bfloat16)))
    assert (found - expected).norm() <= 3e-2 * expected.norm()
    lz.unkernelize(model)
    model.float()
    assert not is_kernelized(model)
