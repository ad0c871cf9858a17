"""A kernelized model over several processes (DDP), and with weights that accelerate fetches from CPU or disk."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from small_llama import TOLERANCE, error, logits_of, plan_of, tiny  # noqa: E402

LAYERS = [f"model.layers.{n}" for n in range(3)]
REST = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"]


def offload(model, kind, folder):
    accelerate = pytest.importorskip("accelerate")
    if kind == "cpu_offload":
        accelerate.cpu_offload(model, execution_device="cpu")
    elif kind == "disk_offload":
        accelerate.disk_offload(model, folder, execution_device="cpu")
    else:
        places = dict.fromkeys(REST + LAYERS[:1], "cpu") | dict.fromkeys(LAYERS[1:], "disk")
        accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)
    assert any(parameter.device.type == "meta" for parameter in model.parameters()), "nothing was offloaded"


@pytest.mark.parametrize("kind", ["cpu_offload", "disk_offload", "device_map"])
def test_offloaded_before(kind, tmp_path):
    model, expected = tiny(), logits_of(tiny())
    offload(model, kind, tmp_path)
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert report.left["model.layers.1.mlp.up_proj"] == "its forward was replaced by something else"
    assert "decoder" in report.left and report.replaced["attention"]["calls"]
    assert lz.unkernelize(model)
    assert torch.equal(logits_of(model), expected)


@pytest.mark.parametrize("kind", ["cpu_offload", "disk_offload", "device_map"])
def test_offloaded_after(kind, tmp_path):
    from accelerate.hooks import remove_hook_from_module

    model, expected = tiny(), logits_of(tiny())
    report = lz.kernelize(model)
    offload(model, kind, tmp_path)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert report.replaced["Linear"]["calls"] and plan_of(model).why_aside
    assert lz.unkernelize(model)  # the hooks hold on to the forwards of before
    assert torch.equal(logits_of(model), expected)
    remove_hook_from_module(model, recurse=True)
    forwards = [module.__dict__["forward"] for module in model.modules() if "forward" in module.__dict__]
    assert all(forward.__func__ is type(forward.__self__).forward for forward in forwards)


@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_are_removed_from_a_kernelized_model(when, tmp_path):
    from accelerate.hooks import remove_hook_from_module

    model, expected = tiny(), logits_of(tiny())
    if when == "after":
        lz.kernelize(model)
    offload(model, "cpu_offload", tmp_path)
    if when == "before":
        lz.kernelize(model)
    remove_hook_from_module(model, recurse=True)
    assert error(logits_of(model), expected) <= TOLERANCE
    if when == "after":
        assert not plan_of(model).why_aside


def test_device_map_of_from_pretrained(tmp_path):
    pytest.importorskip("accelerate")
    tiny().save_pretrained(tmp_path / "model")
    places = dict.fromkeys(REST + LAYERS[:2], "cpu") | {LAYERS[2]: "disk"}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk"
    )
    expected = logits_of(model)
    report = lz.kernelize(model)
    assert error(logits_of(model), expected) <= TOLERANCE
    assert "model.layers.2.mlp.up_proj" in report.left


def test_distributed_data_parallel(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    program = Path(__file__).parent / "support/ddp_process.py"
    command = [sys.executable, str(program)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], **pipes) for rank in range(2)]
    outputs = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert all("alike" in output for output in outputs)
