"""`transformers serve` with LayerZero: the models that Transformers' own server loads, and its answers on loopback."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.cli.serving.model_manager", reason="this Transformers has another server")

import layerzero as lz  # noqa: E402
from layerzero.integrations.transformers import serve  # noqa: E402
from layerzero.integrations.transformers.kernelize import is_kernelized  # noqa: E402
from small_llama import tiny  # noqa: E402

WORDS = ["<unk>", "</s>", *(f"w{i}" for i in range(129))]
PROMPT = " ".join(WORDS[5:12])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random model with a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("served")
    model = tiny()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.save_pretrained(path)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>").save_pretrained(
        path
    )
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "given, name, kernelized", [(None, "layerzero", True), ("layerzero", "layerzero", False), ("sdpa", "sdpa", False)]
)
def test_models_that_the_server_loads(folder, given, name, kernelized):
    with serve.served() as manager:
        from transformers.cli.serving.model_manager import ModelManager

        assert ModelManager is manager
        one = manager(device="cpu", dtype="float32", attn_implementation=given, continuous_batching=True)
        try:
            model, _ = one.load_model_and_processor(str(folder))
            assert model.config._attn_implementation == name and is_kernelized(model) == kernelized
            assert one.attn_implementation == given
            settings = transformers.ContinuousBatchingConfig(num_blocks=8, page_size=16, max_batch_tokens=32)
            greedy = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0)
            (found,) = model.generate_batch([[5, 6, 7]], greedy, settings).values()
            (expected,) = tiny().generate_batch([[5, 6, 7]], greedy, settings).values()
            assert found.generated_tokens == expected.generated_tokens
            lz.unkernelize(model)
        finally:
            one.shutdown()
    from transformers.cli.serving import model_manager

    assert model_manager.ModelManager is not manager


def test_other_names_are_refused_as_by_transformers():
    with (
        serve.served() as manager,
        pytest.raises(ValueError, match="Unsupported attention implementation: 'layerzeroo'"),
    ):
        manager(attn_implementation="layerzeroo")
    with serve.served() as manager, pytest.raises(ValueError, match="Unsupported quantization"):
        manager(attn_implementation="layerzero", quantization="none")


def test_an_older_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.cli.serving", None)
    with pytest.raises(lz.NotInstalledError, match=r"transformers\[serving\]"), serve.served():
        pass


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def server(command, folder, log, metrics):
    port = free_port()
    words = [*command, folder, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--continuous-batching"]
    words += ["--cb-num-blocks", "16", "--cb-block-size", "16", "--cb-max-batch-tokens", "64", "--default-seed", "1"]
    environment = os.environ | {"LAYERZERO_METRICS": metrics, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, env=environment)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def answer(url, process, folder):
    """What the server continues the prompt with, once it answers."""
    asked = {"model": str(folder), "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return json.load(found)["choices"][0]["text"]
        except (ConnectionError, urllib.error.URLError):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.2)


def test_the_command_says_what_the_server_needs(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(lz.NotInstalledError, match=r"no fastapi.*pip install 'transformers\[serving\]'"):
        serve.main([])


def test_the_server_answers_as_its_own_does(folder, tmp_path):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    pytest.importorskip("openai")
    ours = [sys.executable, "-m", "layerzero.integrations.transformers.serve"]
    own = [sys.executable, "-m", "transformers.cli.transformers", "serve"]
    found = []
    metrics = str(free_port())
    for name, command in (("own", own), ("ours", ours)):
        log = tmp_path / name
        with server(command, folder, log, metrics) as (url, process):
            found.append(answer(url, process, folder))
            if name == "ours":
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=60) as text:
                    assert "attention.gqa.decode.block_table" in text.read().decode()
            assert "rror" not in log.read_text(), log.read_text()[-3000:]
    assert found[0] == found[1] and len(found[0].split()) == 6
