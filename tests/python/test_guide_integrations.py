"""The blocks of the pages on vLLM, SGLang, diffusers and the Hub, as they are written, with each library's own classes where a CPU
has them: diffusers, kernels and SGLang's parser. vLLM is substituted; test_guide.py runs the pages that need no other library."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import diffusion_models  # noqa: E402
import layerzero as lz  # noqa: E402
import vllm_stand_in  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)
PACKAGE = Path(lz.__file__).parents[1]


def blocks(page):
    """The blocks without a language, in order."""
    text = (ROOT / f"docs/guide/{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """The words of each command line; the other blocks are Python."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.split(" ")[0] in ("pip", "vllm", "sglang", "python")]


def programs(page):
    return [block for block in blocks(page) if block.split(" ")[0] not in ("pip", "vllm", "sglang", "python")]


@pytest.mark.parametrize("page", ["vllm", "sglang", "diffusers", "hub-kernels"])
def test_what_pip_installs_is_an_extra(page):
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / f"docs/guide/{page}.md").read_text()
    assert set(re.findall(r"layerzero-kernels\[(\w+)\]", text)) <= set(extras)


# ---- vLLM


@pytest.fixture
def vllm():
    """Our plugin over a substitute of vLLM, which is gone afterwards."""
    made = {} if importlib.util.find_spec("vllm") else vllm_stand_in.modules()
    sys.modules.update(made)
    try:
        yield importlib.import_module("vllm")
    finally:
        for name in [n for n in sys.modules if n in made or (made and n.startswith("layerzero.integrations.vllm"))]:
            del sys.modules[name]


def test_vllm_s_program_names_a_backend_that_is_registered(vllm, monkeypatch):
    def engine(model, attention_backend):
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        return model, AttentionBackendEnum[attention_backend].get_path()

    monkeypatch.setattr(vllm, "LLM", engine, raising=False)
    names = {"vllm": vllm, "model": "a model"}
    (program,) = programs("vllm")
    exec(program, names)
    assert names["llm"] == ("a model", "layerzero.integrations.vllm.chosen.Backend")


def test_vllm_s_commands_name_what_the_plugin_reads(vllm):
    from layerzero.integrations.vllm import NAME
    from layerzero.integrations.vllm.options import ops_of

    served = [words for words in commands("vllm") if words[:2] == ["vllm", "serve"]]
    options = dict(pair for words in served for pair in zip(words[3::2], words[4::2], strict=True))
    assert options.pop("--attention-backend") == NAME
    given = json.loads(options.pop("--additional-config"))
    assert ops_of(types.SimpleNamespace(additional_config=given)) == set(given["layerzero"]["ops"])
    assert not options


# ---- SGLang

SGLANG = """
import argparse, json, sys
from layerzero.integrations.sglang.launch_server import entry_point

with entry_point():
    import sglang
    from sglang.srt.plugins import load_plugins
    load_plugins()
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    commands, programs = json.loads(sys.argv[1])
    for options in commands:
        print("BACKEND", parser.parse_args(options).attention_backend)
    sglang.Engine = lambda **given: parser.parse_args(
        [word for name, value in given.items() for word in ("--" + name.replace("_", "-"), value)]
    )
    for program in programs:
        names = {"model": "path"}
        exec(program, names)
        print("BACKEND", names["engine"].attention_backend, names["engine"].sampling_backend)
"""


@pytest.mark.skipif(not (VENV / "sglang").is_dir(), reason="needs requirements/sglang.txt in .venv/sglang: make setup")
def test_sglang_s_own_parser_takes_the_commands():
    served = [words[2:] for words in commands("sglang") if words[:2] == ["sglang", "serve"]]
    served += [words[3:] for words in commands("sglang") if words[0] == "python"]
    support = Path(__file__).parent / "support"
    paths = [VENV / "sglang", VENV / "diffusers", support / "sglang_on_cpu", support, PACKAGE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SGLANG_USE_CPU_ENGINE": "1"}
    command = [sys.executable, "-c", SGLANG, json.dumps([served, programs("sglang")])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.startswith("BACKEND")]
    assert said == ["BACKEND layerzero", "BACKEND layerzero", "BACKEND layerzero layerzero"]


# ---- diffusers


@pytest.fixture
def diffusers(monkeypatch):
    if (VENV / "diffusers").is_dir():
        monkeypatch.setattr(sys, "path", [*sys.path, str(VENV / "diffusers")])
    return pytest.importorskip("diffusers", reason="needs requirements/diffusers.txt in .venv/diffusers: make setup")


def test_diffusers_programs(diffusers, capsys):
    from diffusers.models import attention_dispatch

    kernelized, backend, processor = programs("diffusers")
    vae = diffusion_models.build("vae")[0]
    pipe = diffusers.DiTPipeline(diffusion_models.build("dit")[0], vae, diffusers.DDIMScheduler())
    exec(kernelized, {"pipe": pipe})
    assert "attention" in capsys.readouterr().out and not lz.unkernelize(pipe)

    registry = attention_dispatch._AttentionBackendRegistry
    active = registry._active_backend
    flux, given = diffusion_models.build("flux")
    expected = diffusion_models.run(flux, given)
    try:
        exec(backend, {"pipe": types.SimpleNamespace(transformer=flux)})
        assert {p._attention_backend.value for p in flux.attn_processors.values()} == {"layerzero"}
        assert torch.allclose(diffusion_models.run(flux, given), expected, atol=1e-4)
        flux.reset_attention_backend()
    finally:
        registry.set_active_backend(active)

    unet, given = diffusion_models.build("unet")
    expected = diffusion_models.run(unet, given)
    exec(processor, {"pipe": types.SimpleNamespace(unet=unet)})
    assert all(type(one).__name__.startswith("LayerZeroAttn") for one in unet.attn_processors.values())
    assert torch.allclose(diffusion_models.run(unet, given), expected, atol=1e-4)


# ---- kernels of the Hub

KERNEL = """
import torch

def silu_and_mul(out, x):
    gate, up = x.chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate) * up)

class layers:
    class RMSNorm(torch.nn.Module):
        def forward(self, hidden_states):
            return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
"""
HUB = """
import json, sys, pathlib
import torch
from torch import nn
import layerzero as lz
import small_llama
from layerzero.integrations.hf_kernels import digest_of, layers
import transformers

mapped, configured, sources = json.loads(sys.argv[1])
model = small_llama.tiny().eval()
exec(mapped, {"model": model})
kinds = {type(m).__name__ for m in model.modules() if getattr(m.forward, "__func__", None) is layers.RMSNorm.forward}
assert kinds == {"LlamaRMSNorm"}, kinds

loaded = {}
class Recorder:
    @staticmethod
    def from_pretrained(name, device_map, kernel_config):
        loaded.update(name=name, device_map=device_map, mapping=kernel_config.kernel_mapping)
transformers.AutoModelForCausalLM.from_pretrained = Recorder.from_pretrained
exec(configured, {"name": "a model"})
assert loaded["device_map"] == "cuda" and list(loaded["mapping"]) == ["RMSNorm"], loaded
assert pathlib.Path(loaded["mapping"]["RMSNorm"]["cuda"].rpartition(":")[0]).is_dir()

from kernels import LocalLayerRepository, Mode, register_kernel_mapping
folder = pathlib.Path("activation")
variant = folder / "build/torch-cpu"
variant.mkdir(parents=True)
(variant / "__init__.py").write_text(CODE)
about = {"id": "_small", "name": "small", "version": 1, "license": "MIT", "python-depends": [], "backend": {"type": "cpu"}}
(variant / "metadata.json").write_text(json.dumps(about))
register_kernel_mapping({"RMSNorm": {"cpu": {Mode.INFERENCE: LocalLayerRepository(folder.resolve(), layer_name="RMSNorm")}}})
for pin in ("9f86...", "41ab..."):
    assert pin in sources
    sources = sources.replace(pin, digest_of(folder))
exec(sources.replace('device="cuda"', 'device="cpu"').replace('["float16"]', '["float16", "float32"]'), {})
x = torch.randn(3, 8)
gate, up = x.chunk(2, -1)
with lz.policy(locks={"activation.silu_and_mul": "ours.silu_and_mul", "norm.rms": "ours.rms_norm"}):
    torch.testing.assert_close(lz.silu_and_mul(x), nn.functional.silu(gate) * up)
    torch.testing.assert_close(lz.rms_norm(x, torch.ones(8), 1e-6), nn.functional.rms_norm(x, (8,), eps=1e-6))
print("DONE")
"""


@pytest.mark.skipif(not (VENV / "neighbours").is_dir(), reason="needs requirements/neighbours.txt: make setup")
def test_hub_programs(tmp_path):
    packages = tmp_path / "packages"
    (packages / "kernels-0.18.2.dist-info").mkdir(parents=True)  # as in test_hf_kernels.py
    (packages / "kernels").symlink_to(VENV / "neighbours/kernels")
    about = "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    (packages / "kernels-0.18.2.dist-info/METADATA").write_text(about)
    paths = [packages, Path(__file__).parent / "support", PACKAGE]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", f"CODE = {KERNEL!r}\n{HUB}", json.dumps(programs("hub-kernels"))]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "DONE" in done.stdout, done.stderr[-3000:]
