"""The README's example runs as it is written, but for the path of the model."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_runs(tmp_path, capsys):
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert "path/to/a/llama" in code
    exec(compile(code.replace("path/to/a/llama", str(tmp_path)), str(README), "exec"), {})
    assert "norm.rms" in capsys.readouterr().out
