"""Kernels of the library `kernels`, from a folder in its build layout and from a locked repository in the Hub's cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

NEIGHBOURS = Path(sys.prefix) / "neighbours"  # scripts/setup.sh puts the package there
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import torch

CALLS = []

def silu_and_mul(out, x):
    CALLS.append(1)
    gate, up = x.chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate) * up)

class layers:
    class RMSNorm(torch.nn.Module):
        def forward(self, hidden_states):
            CALLS.append(1)
            return torch.nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
"""


def is_here():
    import importlib.util

    spec = importlib.util.find_spec("kernels")
    return spec is not None and spec.origin is not None  # the clone has a folder of that name


def test_with_the_package(tmp_path):
    if is_here():
        pytest.skip("it is on the path: the tests below run here")
    if not (NEIGHBOURS / "kernels").is_dir():
        pytest.skip("needs requirements/neighbours.txt in .venv/neighbours: make setup")
    # Transformers wants a later version of it than the newest one that can be installed with its hub library; the
    # names that it takes from the package are the same. The other packages of the folder take half a minute to import.
    (tmp_path / "kernels").symlink_to(NEIGHBOURS / "kernels")
    (tmp_path / "kernels-0.18.2.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    (tmp_path / "kernels-0.18.2.dist-info/METADATA").write_text(about)
    path = os.pathsep.join(map(str, (tmp_path, Path(lz.__file__).parents[1])))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).name]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    summary = done.stdout.splitlines()[-1]  # a test with parameters counts more than once
    assert int(summary.split()[0]) >= passed_with_package() and " passed, 1 skipped" in summary, done.stdout[-2000:]


def passed_with_package():
    return Path(__file__).read_text().count("\n@with_package\n") + 1


def test_the_package_is_named_where_it_is_missing(monkeypatch, tmp_path):
    if is_here():
        monkeypatch.setattr("layerzero.host.optional.version_of", lambda name: None)
    from layerzero.integrations.hf_kernels import hub_kernel

    with pytest.raises(lz.NotInstalledError, match="kernels"):
        hub_kernel("activation.silu_and_mul", "hub.x", folder=tmp_path, supported_dtypes=["float32"])


with_package = pytest.mark.skipif(not is_here(), reason="test_with_the_package runs it")


def write_kernel(folder, code=CODE, **metadata):
    variant = folder / "build" / "torch-cpu"
    variant.mkdir(parents=True)
    variant.joinpath("__init__.py").write_text(code)
    name = f"lz-{folder.name}"
    about = {"id": f"{name}_{abs(hash(str(folder)))}", "name": name, "version": 1, "license": "Apache-2.0"}
    about |= {"python-depends": [], "backend": {"type": "cpu"}} | metadata
    variant.joinpath("metadata.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_kernel(tmp_path / "small")


@pytest.fixture
def registered():
    made = []
    yield made
    for operation, kernel_id in made:
        lz.unregister_kernel(operation, kernel_id)


def register(registered, **options):
    from layerzero.integrations.hf_kernels import hub_kernel

    @hub_kernel(
        "activation.silu_and_mul", "hub.silu_and_mul", supported_dtypes=["float32"], requires_contiguous=True, **options
    )
    def silu_and_mul(kernel, input):
        out = input.new_empty(*input.shape[:-1], input.shape[-1] // 2)
        kernel.silu_and_mul(out, input)
        return out

    registered.append(("activation.silu_and_mul", "hub.silu_and_mul"))
    return silu_and_mul


def check_calls():
    x = torch.randn(3, 64)
    gate, up = x.chunk(2, -1)
    found = lz.silu_and_mul(x, kernel="hub.silu_and_mul")
    assert torch.equal(found, torch.nn.functional.silu(gate) * up)


def note_of(kernel_id="hub.silu_and_mul", operation="activation.silu_and_mul"):
    (row,) = [k for k in lz.list_kernels(operation) if k.kernel_id == kernel_id]
    assert row.origin == "hub"
    return json.loads(row.notes[-1].removeprefix("Hub kernel: "))


@with_package
def test_a_pinned_folder(folder, registered):
    from layerzero.integrations.hf_kernels import digest_of

    digest = digest_of(folder)
    register(registered, folder=folder, digest=digest)
    check_calls()
    note = note_of()
    assert note == {
        "repository": str(folder),
        "revision": None,
        "variant": "torch-cpu",
        "digest": digest,
        "locked_by": "digest",
    }
    assert digest_of(folder) == digest  # the import has left files of bytecode


@with_package
def test_other_files_than_the_pinned_ones_are_not_imported(folder, registered):
    from layerzero.integrations.hf_kernels import digest_of

    digest = digest_of(folder)
    (folder / "build/torch-cpu/__init__.py").write_text("raise SystemExit('imported')")
    with pytest.raises(lz.KernelRefusedError, match=f"wanted {digest}, got {digest_of(folder)}"):
        register(registered, folder=folder, digest=digest)
    assert not registered


@with_package
def test_an_unpinned_folder_needs_the_policy(folder, registered):
    code = folder / "build/torch-cpu/__init__.py"
    code.write_text("raise SystemExit('imported')")
    with pytest.raises(lz.KernelRefusedError, match="is not pinned.*allow_sources"):
        register(registered, folder=folder)
    code.write_text(CODE)
    with lz.policy(allow_sources=["*"]), pytest.raises(lz.KernelRefusedError, match="is not pinned"):
        register(registered, folder=folder)  # a name for everything names no source
    with lz.policy(allow_sources=["hub*", "torch"]), pytest.warns(UserWarning, match="is not pinned"):
        register(registered, folder=folder)
    check_calls()
    assert note_of()["locked_by"] is None


@with_package
def test_files_that_the_metadata_does_not_list(tmp_path, registered):
    from kernels._rust import Digest, DigestAlgorithm
    from layerzero.integrations.hf_kernels import digest_of

    folder = write_kernel(tmp_path / "listed")
    files = Digest.hash_variant(DigestAlgorithm.SHA256, folder / "build/torch-cpu").files
    path = folder / "build/torch-cpu/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"digest": {"algorithm": "sha256", "files": files}}))
    register(registered, folder=folder, digest=digest_of(folder))
    (folder / "build/torch-cpu/more.py").write_text("")
    with pytest.raises(lz.KernelRefusedError, match="metadata.json lists"):
        register(registered, folder=folder, digest=digest_of(folder))


@with_package
def test_a_folder_without_a_build_for_this_process(tmp_path, registered):
    other = tmp_path / "other/build/torch29-cxx11-cu126-x86_64-linux"
    other.mkdir(parents=True)
    with pytest.raises(lz.KernelRefusedError, match="no build for this process"):
        register(registered, folder=tmp_path / "other")


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A repository in a cache of the Hub, and the lockfile that pins it."""
    from kernels._rust import KernelDependency, KernelLock, KernelLocks, KernelVersion

    from kernels import hf_hub, resolver

    cache = tmp_path / "cache"
    snapshot = cache / "kernels--ours--small" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    write_kernel(snapshot)
    for module in (hf_hub, resolver):
        monkeypatch.setattr(module, "CACHE_DIR", str(cache))
    wanted = KernelDependency("ours/small", KernelVersion.Version(1))
    lockfile = tmp_path / "kernels.lock"
    lockfile.write_text(KernelLocks(locks={wanted: KernelLock(commit=COMMIT)}).to_json())
    return lockfile


@with_package
def test_a_locked_repository(cached, registered):
    register(registered, repository="ours/small", lockfile=cached)
    check_calls()
    note = note_of()
    assert (note["repository"], note["revision"]) == ("ours/small", COMMIT)
    assert note["locked_by"] == "commit in kernels.lock" and len(note["digest"]) == 64


@with_package
def test_what_is_not_in_the_lockfile_or_the_cache(cached, registered, tmp_path):
    with pytest.raises(lz.KernelRefusedError, match="ours/other cannot be loaded"):
        register(registered, repository="ours/other", lockfile=cached)
    cached.write_text(cached.read_text().replace(COMMIT, COMMIT[::-1]))
    with pytest.raises(lz.KernelRefusedError, match="cannot be loaded"):  # no network is asked for it
        register(registered, repository="ours/small", lockfile=cached)
    with pytest.raises(lz.InvalidRequestError, match="kernels lock"):
        register(registered, repository="ours/small")


@with_package
def test_a_layer(folder, registered):
    from layerzero.integrations.hf_kernels import digest_of, hub_kernel, run_layer

    @hub_kernel(
        "norm.rms",
        "hub.rms_norm",
        folder=folder,
        digest=digest_of(folder),
        supported_dtypes=["float32"],
        requires_contiguous=True,
    )
    def rms_norm(kernel, input, weight, eps):
        return run_layer(kernel.layers.RMSNorm, input, weight=weight, variance_epsilon=eps)

    registered.append(("norm.rms", "hub.rms_norm"))
    x, weight = torch.randn(2, 8), torch.randn(8)
    found = lz.rms_norm(x, weight, 1e-5, kernel="hub.rms_norm")
    assert torch.allclose(found, torch.nn.functional.rms_norm(x, (8,), weight, 1e-5))


@with_package
def test_one_of_folder_and_repository(folder, registered):
    with pytest.raises(lz.InvalidRequestError):
        register(registered, folder=folder, repository="ours/small")
    with pytest.raises(lz.InvalidRequestError):
        register(registered)


# The other way: LayerZero's layers in the mapping of `kernels`, and a mapping as a source.


@pytest.fixture
def mapped():
    """The mapping of `kernels`, empty, and as it was afterwards."""
    from kernels.layer import layer
    from kernels.layer.globals import _KERNEL_MAPPING

    token = _KERNEL_MAPPING.set({})
    known = dict(layer._CACHED_LAYER)
    yield _KERNEL_MAPPING
    _KERNEL_MAPPING.reset(token)
    layer._CACHED_LAYER.clear()
    layer._CACHED_LAYER.update(known)


@with_package
def test_the_layers_of_a_model_are_mapped(mapped, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from layerzero.integrations.hf_kernels import layers, mapping

    from kernels import Mode, kernelize, register_kernel_mapping

    settings = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    ids = torch.arange(12).reshape(1, 12)
    with torch.no_grad():
        expected = model(ids).logits
    register_kernel_mapping(mapping())
    kernelize(model, mode=Mode.INFERENCE, device="cpu", use_fallback=True)
    replaced = {
        type(m).__name__ for m in model.modules() if getattr(m.forward, "__func__", None) is layers.RMSNorm.forward
    }
    assert replaced == {"LlamaRMSNorm"}
    rotate = model.model.layers[0].self_attn._kernel_funcs["rotary_pos_emb"]
    try:
        assert rotate.forward.__func__ is layers.rotary_pos_emb.forward
        seen = []
        for name in ("rms_norm", "rope", "activation"):
            own = getattr(layers, name)
            monkeypatch.setattr(layers, name, lambda *a, own=own, name=name, **k: (seen.append(name), own(*a, **k))[1])
        with torch.no_grad():
            found = model(ids).logits
        assert {name: seen.count(name) for name in seen} == {"rms_norm": 5, "rope": 4, "activation": 2}
        assert (found - expected).abs().max() < 1e-4
    finally:
        rotate.__dict__.pop("forward")


def norms_of_models():
    """(a norm of Transformers, the layer that takes its place): the weight in the dtype of the rows, or kept in float32."""
    pytest.importorskip("transformers")
    from layerzero.integrations.hf_kernels import layers
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RMSNorm
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

    for kind in (LlamaRMSNorm, GptOssRMSNorm, DeepseekV4RMSNorm):
        yield kind, layers.RMSNorm
    yield Qwen3_5RMSNorm, layers.RMSNormZeroCentered


@pytest.mark.parametrize("of_rows", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("of_weight", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_norm_returns_the_dtype_that_the_model_returns(of_weight, of_rows):
    import types

    torch.manual_seed(7)
    rows = (torch.randn(2, 5, 64) * 3).to(of_rows)
    for kind, layer in norms_of_models():
        own = kind(64)
        own.weight.data = torch.randn(64).to(of_weight)
        with torch.no_grad():
            expected = own(rows)
            own.forward = types.MethodType(layer.forward, own)  # as `kernels` does
            for _ in range(2):
                found = own(rows)
                assert found.dtype == expected.dtype, kind.__name__
                eps = max(torch.finfo(each).eps for each in (of_weight, of_rows))
                torch.testing.assert_close(found, expected, rtol=2 * eps, atol=1e-5)


def test_a_norm_without_code_of_its_own_returns_the_dtype_of_the_rows():
    from layerzero.integrations.hf_kernels import layers

    norm = layers.RMSNorm()
    norm.weight, norm.eps = torch.nn.Parameter(torch.randn(64)), 1e-6
    rows = torch.randn(3, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        expected = torch.nn.functional.rms_norm(rows.float(), (64,), norm.weight, 1e-6).bfloat16()
        torch.testing.assert_close(norm(rows), expected, rtol=8e-3, atol=1e-5)


@with_package
@pytest.mark.parametrize("mode", ["INFERENCE", "TRAINING", "TRAINING|TORCH_COMPILE"])
def test_a_mapped_layer_in_each_mode(mapped, mode):
    import functools

    from layerzero.integrations.hf_kernels import mapping

    from kernels import Mode, kernelize, register_kernel_mapping, use_kernel_forward_from_hub

    @use_kernel_forward_from_hub("SiluAndMul")
    class SiluAndMul(torch.nn.Module):
        def forward(self, x):
            gate, up = x.chunk(2, -1)
            return torch.nn.functional.silu(gate) * up

    register_kernel_mapping(mapping(["SiluAndMul"], ["cpu"]))
    flags = functools.reduce(lambda a, b: a | b, (Mode[name] for name in mode.split("|")))
    x = torch.randn(3, 16, requires_grad="TRAINING" in mode)
    own = SiluAndMul()
    model = kernelize(SiluAndMul(), mode=flags, device="cpu", use_fallback=False)
    assert model.forward.__func__ is not SiluAndMul.forward
    assert torch.allclose(model(x), own(x), atol=1e-6)
    if x.requires_grad:
        (found,), (wanted,) = (torch.autograd.grad(m(x).square().sum(), x) for m in (model, own))
        assert torch.allclose(found, wanted, atol=1e-5)


@with_package
def test_what_the_mapping_refuses(mapped, tmp_path):
    from layerzero.integrations.hf_kernels import kernel_config, mapping

    with pytest.raises(lz.InvalidRequestError, match="names.*RMSNorm"):
        mapping(["RMSNorm", "LSTM"])
    with pytest.raises(lz.InvalidRequestError, match="devices"):
        mapping(devices=["mps"])
    with pytest.raises(lz.InvalidRequestError, match="KernelConfig.*register_kernel_mapping"):
        kernel_config(tmp_path, device="cpu")


@with_package
def test_mapping_and_kernel_config_warn(mapped, monkeypatch, tmp_path):
    from layerzero.integrations.hf_kernels import kernel_config, mapping

    monkeypatch.setattr("layerzero.host.optional.version_of", lambda name: "0.17.2")
    with pytest.warns(lz.errors.LayerZeroCompatibilityWarning, match=r"mapping\(\): wanted") as found:
        mapping()
    assert found[0].filename == __file__
    with pytest.warns(lz.errors.LayerZeroCompatibilityWarning, match=r"kernel_config\(\): wanted"):
        kernel_config(tmp_path)


@with_package
def test_a_kernel_config_names_a_folder(mapped, tmp_path):
    from layerzero.integrations.hf_kernels import kernel_config, layers, write_local_kernel

    from kernels import LocalLayerRepository

    config = kernel_config(tmp_path / "gpu", ["RMSNorm", "SiLU"])
    assert config.kernel_mapping["SiLU"] == {"cuda": f"{tmp_path / 'gpu'}:SiLU"} and config.use_local_kernel
    folder = write_local_kernel(tmp_path / "local", ["cpu"])
    assert LocalLayerRepository(folder, layer_name="RMSNorm").load() is layers.RMSNorm


@pytest.fixture
def of_mapping(mapped, folder):
    from kernels import LocalLayerRepository, Mode, register_kernel_mapping

    repository = LocalLayerRepository(folder, layer_name="RMSNorm")
    register_kernel_mapping({"RMSNorm": {"cpu": {Mode.INFERENCE: repository}}})
    return folder


def code_of(folder):
    return folder / "build/torch-cpu/__init__.py"


@with_package
def test_a_mapping_is_a_source(of_mapping, registered):
    from layerzero.integrations.hf_kernels import digest_of, mapped_layer

    mapped_layer("RMSNorm", "hub.mapped", digest=digest_of(of_mapping), supported_dtypes=["float32"])
    registered.append(("norm.rms", "hub.mapped"))
    x, weight = torch.randn(2, 8), torch.randn(8)
    found = lz.rms_norm(x, weight, 1e-5, kernel="hub.mapped")
    assert torch.allclose(found, torch.nn.functional.rms_norm(x, (8,), weight, 1e-5), atol=1e-6)
    (calls,) = [m.CALLS for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(code_of(of_mapping))]
    assert calls == [1]
    with pytest.raises(lz.KernelRefusedError, match="adds 0 to the weight, not 1"):
        lz.rms_norm(x, weight, 1e-5, kernel="hub.mapped", weight_offset=1.0)
    with pytest.raises(lz.KernelRefusedError, match="multiplies by a weight"):
        lz.rms_norm(x, None, 1e-5, kernel="hub.mapped")
    assert note_of("hub.mapped", "norm.rms")["locked_by"] == "digest"


@with_package
def test_what_a_mapping_as_a_source_refuses(of_mapping, registered):
    from layerzero.integrations.hf_kernels import digest_of, mapped_layer

    from kernels import LayerRepository, register_kernel_mapping

    def register_layer(name="RMSNorm", **options):
        given = {"digest": digest_of(of_mapping), "supported_dtypes": ["float32"]} | options
        mapped_layer(name, "hub.refused", **given)

    with pytest.raises(lz.InvalidRequestError, match="for RMSNorm on cuda in mode inference"):
        register_layer(device="cuda")
    with pytest.raises(lz.InvalidRequestError, match="in mode training"):
        register_layer(mode="training")
    with pytest.raises(lz.InvalidRequestError, match="mode.*inference.*'fast'"):
        register_layer(mode="fast")
    with pytest.raises(lz.InvalidRequestError, match="layer_name.*'Linear'"):
        register_layer("Linear")
    with pytest.raises(lz.KernelRefusedError, match="torch cannot trace RMSNorm"):
        from kernels import LocalLayerRepository, Mode

        repository = LocalLayerRepository(of_mapping, layer_name="RMSNorm")
        compiled = {Mode.INFERENCE | Mode.TORCH_COMPILE: repository}
        register_kernel_mapping({"RMSNorm": {"cpu": compiled}})
        register_layer(mode="inference+compile")
    with pytest.raises(lz.KernelRefusedError, match="digest"):
        register_layer(digest="0" * 64)
    fetched = LayerRepository("ours/norms", layer_name="RMSNorm", version=1)
    register_kernel_mapping({"RMSNorm": {"cpu": fetched}})
    with pytest.raises(lz.InvalidRequestError, match="LockedLayerRepository"):
        register_layer()
