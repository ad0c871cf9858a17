"""bench/serving/vllm_logprobs.py: what it says of two engines' log-probabilities, and its command over a vLLM that is substituted."""

import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "bench/serving"

# Logits are a function of the last two tokens. LAYERZERO's differ by a little, more in batches of 4; FLASHINFER does not start.
VLLM = """
import random, types

class SamplingParams:
    def __init__(self, **options):
        self.__dict__ = {"logprobs": None, "prompt_logprobs": None} | options

class LLM:
    def __init__(self, model, attention_backend, max_num_seqs, **options):
        if attention_backend == "FLASHINFER":
            raise RuntimeError("no kernels of FlashInfer here")
        assert options["enforce_eager"] and max_num_seqs == 4
        self.noise = 0.01 if attention_backend == "LAYERZERO" else 0.0
        config = types.SimpleNamespace(static_forward_context={})
        self.llm_engine = types.SimpleNamespace(vllm_config=types.SimpleNamespace(compilation_config=config))

    def apply_model(self, function):
        return [123]

    def candidates(self, context, batch):
        source = random.Random(str(context[-2:]))
        values = {token: -source.random() for token in range(50)}
        shift = random.Random(str((context[-3:], batch)))
        return {t: v + self.noise * batch / 4 * shift.uniform(-1, 1) for t, v in values.items()}

    def best(self, values, token, count):
        ranked = sorted(values, key=values.get, reverse=True)
        chosen = [token, *(one for one in ranked[:count] if one != token)]
        return {t: types.SimpleNamespace(logprob=values[t], rank=ranked.index(t) + 1) for t in chosen}

    def generate(self, rows, sampling, use_tqdm):
        for row in rows:
            context, tokens, logprobs = list(row["prompt_token_ids"]), [], []
            asked = sampling.prompt_logprobs
            prompt = asked and [None] + [
                self.best(self.candidates(context[:i], len(rows)), context[i] % 50, asked) for i in range(1, len(context))
            ]
            if asked:  # ids of prompts are larger than the 50 that have values
                prompt = [one and {t: v for t, v in one.items()} | {context[i]: one[context[i] % 50]} for i, one in enumerate(prompt)]
            for _ in range(sampling.max_tokens):
                values = self.candidates(context, len(rows))
                token = max(values, key=values.get)
                logprobs.append(self.best(values, token, sampling.logprobs or 1))
                tokens.append(token)
                context.append(token)
            answer = types.SimpleNamespace(token_ids=tokens, logprobs=logprobs)
            yield types.SimpleNamespace(outputs=[answer], prompt_logprobs=prompt)
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SERVING))
    import vllm_logprobs

    yield vllm_logprobs
    for name in ("host_costs", "vllm_backends", "vllm_logprobs"):
        sys.modules.pop(name, None)


def candidate(logprob, rank):
    return types.SimpleNamespace(logprob=logprob, rank=rank)


def test_a_place_has_the_token_and_the_two_best(bench):
    further = {7: candidate(-3.0, 90), 5: candidate(-1.0, 1), 6: candidate(-1.5, 2)}
    assert bench.place(7, further) == [7, -3.0, 5, -1.0, -1.5]
    tied = {6: candidate(-1.0, 2), 5: candidate(-1.0, 1)}
    assert bench.place(6, tied) == [6, -1.0, 5, -1.0, -1.0]


def test_scored_tokens_are_all_compared(bench):
    reference = [[[1, -1.0, 1, -1.0, -1.5], [2, -2.0, 3, -1.0, -1.125]]]
    own = [[[1, -1.25, 1, -1.25, -1.5], [2, -2.5, 4, -1.0, -1.0]]]
    assert bench.scored(own, reference) == {
        "tokens": 2,
        "largest_difference": 0.5,
        "mean_difference": 0.375,
        "other_best_candidate": 1,
        "gaps_there": {"largest": 0.125, "mean": 0.125},
        "mean_gap": 0.3125,
    }
    assert bench.scored(reference, reference)["gaps_there"] is None


def test_decoded_tokens_are_compared_until_they_differ(bench):
    reference = [
        [[1, -1.0, 1, -1.0, -2.0], [2, -1.0, 2, -1.0, -1.25], [3, -1.0, 3, -1.0, -9.0]],
        [[5, -1.0, 5, -1.0, -2.0]],
    ]
    own = [[[1, -1.5, 1, -1.5, -2.0], [4, -1.0, 4, -1.0, -1.0], [9, -7.0, 9, -7.0, -9.0]], [[5, -1.0, 5, -1.0, -2.0]]]
    found = bench.decoded(own, reference)
    assert found["tokens"] == 2 and found["largest_difference"] == 0.5 and found["other_best_candidate"] == 0
    assert (found["answers"], found["other_answers"], found["gaps_at_first_difference"]) == (2, 1, [0.25])
    at_once = bench.decoded([[[4, -1.0, 4, -1.0, -1.0]]], [[[2, -1.0, 2, -1.0, -1.25]]])
    assert at_once["tokens"] == 0 and at_once["largest_difference"] is None and at_once["other_answers"] == 1


def test_every_engine_and_batch_size_is_a_row(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text(VLLM)
    out = tmp_path / "out.json"
    command = [sys.executable, str(SERVING / "vllm_logprobs.py"), "--out", str(out), "--batch", "4", "2"]
    command += ["--input", "12", "--output", "40", "--layers", "1"]
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path}, timeout=240)
    report = json.loads(out.read_text())
    assert done.returncode == 1 and [one["engine"] for one in report["failed"]] == ["flashinfer"], (
        done.stdout + done.stderr
    )
    assert "RuntimeError: no kernels of FlashInfer here; see out.flashinfer.log" in report["failed"][0]["error"]
    rows = {(row["engine"], row["batch"]): row for row in report["compared"]}
    assert list(rows) == [
        ("flash_attn", "2"), ("flash_attn, run 2", "4"), ("flash_attn, run 2", "2"), ("layerzero", "4"), ("layerzero", "2"),
    ]  # fmt: skip
    for (engine, batch), row in rows.items():
        assert row["against"] == "flash_attn, batch 4" and row["scored"]["tokens"] == 4 * 40
        most = {"layerzero": 0.01 * int(batch) / 4}.get(engine, 0.0)
        assert row["scored"]["largest_difference"] <= most and row["decoded"]["largest_difference"] <= most
        if most:  # the best candidate is another one only where the first two are as near as the difference
            assert row["scored"]["mean_difference"] > 0 and row["scored"]["other_best_candidate"] > 0
            assert row["scored"]["gaps_there"]["largest"] <= 2 * most < row["scored"]["mean_gap"]
            assert all(gap <= 2 * most for gap in row["decoded"]["gaps_at_first_difference"])
        else:
            assert row["scored"]["other_best_candidate"] == row["decoded"]["other_answers"] == 0


def test_without_a_reference_nothing_is_compared(tmp_path):
    (tmp_path / "vllm.py").write_text("raise ImportError('no vLLM')")
    out = tmp_path / "out.json"
    command = [sys.executable, str(SERVING / "vllm_logprobs.py"), "--out", str(out)]
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    subprocess.run(command, capture_output=True, env={"PYTHONPATH": path}, timeout=240)
    report = json.loads(out.read_text())
    assert report["compared"] == [] and len(report["failed"]) == 1
    assert "ImportError: no vLLM" in report["failed"][0]["error"]
