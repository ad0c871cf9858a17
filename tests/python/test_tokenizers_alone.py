"""Tokenizers in a process without torch, and while LayerZero is disabled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")

import layerzero as lz  # noqa: E402
from small_tokenizer import build  # noqa: E402
from vocabularies import vocabulary  # noqa: E402

WORD_PIECE = """
import sys, warnings
import tokenizers as T
import layerzero as lz

warnings.simplefilter("error")
made = T.Tokenizer(T.models.WordPiece({"hello": 0, "[UNK]": 1, "there": 2}, unk_token="[UNK]"))
made.pre_tokenizer = T.pre_tokenizers.Whitespace()
identity = lz.register_tokenizer(made)
"""
PROGRAMS = {
    "encode": WORD_PIECE + "assert lz.tokenize('hello there', identity)['input_ids'] == [0, 2]",
    "decode": WORD_PIECE + "assert lz.detokenize([0, 2], identity) == made.decode([0, 2])",
    "surrogate": WORD_PIECE
    + """
try:
    lz.tokenize("a\\ud800b", identity)
except lz.InvalidRequestError as error:
    assert "surrogate" in str(error) and "install" not in str(error)
else:
    raise AssertionError("no error")
""",
    "composed by a normalizer": """
import sys
import layerzero as lz
from vocabularies import vocabulary

made = vocabulary("qwen2")
found = lz.tokenize("cafe\\u0301", lz.register_tokenizer(made))["input_ids"]
assert found == made.encode("cafe\\u0301").ids
""",
}


def run(program, **environment):
    support = Path(__file__).parent / "support"
    path = os.pathsep.join([str(support), os.environ.get("PYTHONPATH", "")])
    variables = os.environ | {"PYTHONPATH": path} | environment
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_library_s_own_call_needs_no_torch(name):
    run(PROGRAMS[name] + "\nassert 'torch' not in sys.modules\n")


def test_a_wrapped_tokenizer_needs_nothing_before():
    pytest.importorskip("transformers")
    program = """
import transformers
native = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
assert lz.wrap_tokenizer(native)("hello there")["input_ids"] == [0, 2]
"""
    run(WORD_PIECE.replace('warnings.simplefilter("error")', "") + program)


TEXTS = ["hello there", "cafe\u0301", ""]


@pytest.mark.parametrize("off", [lz.disabled, lambda: lz.policy(enabled=False)], ids=["disabled", "enabled: false"])
@pytest.mark.parametrize("made", [build(), vocabulary("qwen2")], ids=["small", "qwen2"])
def test_a_disabled_library_leaves_tokens_to_the_tokenizer_s_own(off, made):
    identity = lz.register_tokenizer(made)
    wanted = made.encode_batch(TEXTS)
    with off():
        found = lz.tokenize(TEXTS, identity, return_offsets=True)
        assert found == {"input_ids": [e.ids for e in wanted], "offsets": [e.offsets for e in wanted]}
        ids = [e.ids for e in wanted]
        assert lz.detokenize(ids, identity) == made.decode_batch(ids)


def test_the_environment_s_switch_leaves_wrapped_tokenizers_to_their_own():
    pytest.importorskip("transformers")
    program = """
import transformers
import layerzero as lz
from small_tokenizer import build

native = transformers.PreTrainedTokenizerFast(tokenizer_object=build())
wrapped = lz.wrap_tokenizer(native)
assert wrapped("hello there")["input_ids"] == native("hello there")["input_ids"]
assert wrapped.decode([5, 6]) == native.decode([5, 6])
"""
    run(program, LAYERZERO_DISABLED="1")
