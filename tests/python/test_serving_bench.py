"""bench/serving: what it says about the host, and that a run which is cut off keeps what came."""

import json
import sys
import threading
import time
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "bench/serving"


@pytest.fixture
def serving(monkeypatch):
    monkeypatch.syspath_prepend(str(SERVING))
    import host_costs
    import vllm_backends

    yield host_costs, vllm_backends
    for name in ("host_costs", "vllm_backends"):
        sys.modules.pop(name, None)


def test_gaps_of_the_device_are_named_by_their_neighbours(serving):
    work = [(10, 20, "a"), (25, 30, "b"), (26, 28, "c"), (31, 40, "a"), (45, 50, "b")]
    found = serving[0].gaps(work[::-1])
    assert found["busy_us"] == 29 and found["idle_us"] == 11
    assert found["between"] == {"a > b": [2, 10], "b > a": [1, 1]}
    assert serving[0].gaps([])["between"] == {}


def test_usage_names_a_thread_that_competes(serving):
    stop, used = threading.Event(), [0.0]

    def spin():
        while not stop.is_set():
            sum(range(1000))
            used[0] = time.thread_time()

    thread = threading.Thread(target=spin, name="spinner", daemon=True)
    try:
        with serving[0].Usage() as host:
            thread.start()
            while used[0] < 0.05:
                sum(range(1000))
    finally:
        stop.set()
        thread.join()
    assert 0.03 <= host.found["threads"]["spinner"] < 5 and "spinner" in host.found["python_threads"]
    assert host.found["process_cores"] >= host.found["main_thread_cores"] > 0 and host.found["machine_cores"] > 0
    with serving[0].Usage() as host:
        time.sleep(0.05)
    assert "spinner" not in host.found["threads"] and "spinner" not in host.found["python_threads"]


def test_functions_are_counted(serving):
    def inner():
        return sum(range(100))

    found = serving[0].functions(lambda: [inner() for _ in range(7)])
    (row,) = [row for place, row in found.items() if place.endswith(" inner")]
    assert row[0] == 7 and row[1] >= 0
    assert serving[0].python_ms() > 0


def engine(tmp_path, end, pause=60):
    """A command that writes two results, the last of them complete and `pause` seconds later, and then does `end`."""
    script = tmp_path / "engine.py"
    partial, whole = {"batches": {"1": {}}, "cut_off": True}, {"batches": {"1": {}, "16": {}}, "cut_off": False}
    lines = f"print('RESULT ' + {json.dumps(json.dumps(partial))}, flush=True)\n"
    lines += f"time.sleep({pause})\nprint('RESULT ' + {json.dumps(json.dumps(whole))}, flush=True)\n"
    script.write_text(f"import time, sys\n{lines}{end}\n")
    return [sys.executable, str(script)]


def test_an_engine_that_is_cut_off_keeps_its_batches(serving, tmp_path):
    came = list(serving[1].run(engine(tmp_path, ""), tmp_path / "log", 4))
    assert came[-1][0]["batches"] == {"1": {}} and "not ready within 4 s; see log" in came[-1][1]
    assert len(came) == 2 and came[0] == (came[-1][0], "")


def test_an_engine_that_came_to_its_end_is_ready_however_it_ended(serving, tmp_path):
    came = list(serving[1].run(engine(tmp_path, "sys.exit(3)", pause=1.5), tmp_path / "log", 60))
    assert list(came[-1][0]["batches"]) == ["1", "16"] and came[-1][1] == ""
    (failed,) = serving[1].run([sys.executable, "-c", "raise SystemExit(4)"], tmp_path / "log", 60)
    assert failed == (None, "4; see log")


def test_engines_of_which_one_was_cut_off_are_compared_where_both_came(serving, tmp_path):
    def result(name, batches, **further):
        batch = {"tokens": [[1, 2]], "tokens_per_s": 4.0, "first_token_ms": 1.0, "step_ms": 1.0}
        return {"engine": name, "batches": {size: batch for size in batches}, **further}

    results = [result("flash_attn", "1", first_logprobs=[-1.0]), result("layerzero", ["1", "16"])]
    rows = serving[1].written(results, {}, tmp_path / "out.json")
    assert [(row["engine"], row["batch"]) for row in rows] == [("flash_attn", "1"), ("layerzero", "1")]
    assert rows[0]["first_logprob_difference"] == 0 and rows[1]["first_logprob_difference"] is None
