"""layerzero top of a running process; lz.report and layerzero report, its page in a real browser."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero.telemetry.page import histogram, measured  # noqa: E402
from layerzero.telemetry.top import text, view  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent
ENV = {k: v for k, v in os.environ.items() if not k.startswith("LAYERZERO_")} | {"PYTHONPATH": str(PACKAGE)}
WORKER = """
import threading, sys, torch, layerzero as lz
server = lz.serve_metrics(port=0)
print(server.port, flush=True)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
x, w = torch.ones(4, 8), torch.ones(8)
while not done.wait(0.001):
    lz.rms_norm(x, w)
"""


@pytest.fixture
def port():
    """The port of a process that calls rms_norm again and again."""
    pytest.importorskip("prometheus_client")
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield worker.stdout.readline().strip()
    finally:
        worker.stdin.close()
        worker.wait(60)


def layerzero(*arguments, **options):
    command = [sys.executable, "-m", "layerzero", *arguments]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=240, **options)


def test_one_look_as_json(port):
    jsonschema = pytest.importorskip("jsonschema")
    done = layerzero("top", "--port", port, "--once", "--json", "--interval", "0.5")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    schema = Path(__file__).resolve().parents[2] / "schemas/cli/top.schema.json"
    jsonschema.validate(shown, json.loads(schema.read_text()))
    (norm,) = [k for k in shown["kernels"] if k["operation"] == "norm.rms"]
    assert norm["kernel_id"] == "hwy.norm.rms" and norm["per_second"] > 0 and norm["runs"] > norm["misses"] >= 1
    assert 0 < norm["p50_us"] <= norm["p99_us"]


def test_the_live_view_in_a_terminal(port):
    main, child = pty.openpty()
    env = ENV | {"COLUMNS": "120", "LINES": "20", "TERM": "xterm"}
    top = subprocess.Popen(
        [sys.executable, "-m", "layerzero", "top", "--port", port, "--interval", "0.3"],
        env=env,
        stdout=child,
        stderr=child,
    )
    os.close(child)
    seen, deadline = b"", time.monotonic() + 120
    while seen.count(b"\x1b[H\x1b[J") < 2 and time.monotonic() < deadline:
        if select.select([main], [], [], 1)[0]:
            seen += os.read(main, 65536)
    top.send_signal(2)
    assert top.wait(60) == 130
    os.close(main)
    screens = seen.decode().split("\x1b[H\x1b[J")
    assert len(screens) >= 3 and "hwy.norm.rms" in screens[1] and "runs/s" in screens[1]


def test_no_process_is_an_error_that_says_what_to_do():
    done = layerzero("top", "--port", "1", "--once")
    assert done.returncode == 2 and "lz.serve_metrics()" in done.stderr
    assert layerzero("top", "--json").returncode == 2


def state(seconds, runs, buckets):
    run = {"operation": "o", "kernel_id": "k", "runs": runs, "hits": runs, "misses": 0, "fallbacks": 0, "failures": 0}
    return {
        "time": seconds, "pid": 1, "version": "1", "counting": True, "fallbacks": 0, "cache": {"entries": 1},
        "reference_calls": [], "runs": [run | {"seconds": runs * 1e-3, "buckets": buckets}],
        "breakers": [{"operation": "o", "kernel_id": "bad", "device": "cpu", "state": "open"}],
    }  # fmt: skip


def test_rates_are_those_of_the_interval():
    shown = view(state(10, 100, {"1024": 100}), state(12, 300, {"1024": 100, "1048576": 200}))
    (row,) = shown["kernels"]
    assert row["per_second"] == 100 and row["busy"] == pytest.approx(0.1)
    assert 524 < row["p50_us"] < 1049  # of the interval's runs alone
    assert "bad of o on cpu: open" in text(shown) and "1 breakers open" in text(shown)
    assert len(text(shown, width=60).splitlines()[2]) <= 60


def test_a_histogram_has_a_bar_for_each_bucket():
    drawn = histogram({"1024": 10, "4096": 5, "2048": 0})
    assert drawn.count("<rect") == 3 and "below 1.02 us: 10" in drawn and "below 4.1 us: 5" in drawn
    assert histogram({}) == ""


def test_alternatives_are_drawn_with_the_intervals_of_their_medians():
    fast = {"kernel_id": "a.k", "measured_us": 10.0, "measured_interval_us": [9.5, 10.5]}
    slow = {"kernel_id": "b.k", "measured_us": 15.0, "measured_interval_us": [10.0, 20.0]}
    drawn = measured({"kernel_id": "a.k", "candidates": [slow, {"kernel_id": "c.k"}, fast]})
    assert drawn.index("10 us (9.5 to 10.5)") < drawn.index("15 us (10 to 20)") and "c.k" not in drawn
    assert 'd="M350.0 24.5H500.0M' in drawn and 'd="M342.5 6.5H357.5M' in drawn  # 300 points are 20 us
    assert measured({"kernel_id": "a.k", "candidates": [{"kernel_id": "c.k"}]}) == ""


@pytest.fixture
def recorded():
    x, w = torch.ones(4, 8), torch.ones(8)
    with lz.report() as recording:
        for _ in range(20):
            lz.rms_norm(x, w)
        lz.softmax(x)
    return recording


def test_what_a_report_records(recorded):
    data = recorded.to_dict()
    decisions = {d["report"]["operation"]: d for d in data["decisions"]}
    assert set(decisions) == {"norm.rms", "softmax"} or "norm.rms" in decisions
    assert decisions["norm.rms"]["inputs"] == "float32[4,8] float32[8]"
    (norm,) = [r for r in data["runs"] if r["operation"] == "norm.rms"]
    assert norm["runs"] == 20 and norm["hits"] == 19
    assert not lz.metrics().counting  # as before


def test_the_page_names_every_candidate_with_its_reason(recorded):
    page = recorded.html()
    assert "hwy.norm.rms" in page and "a reference runs only if no other kernel may" in page
    assert "PLATFORM_MISMATCH" in page and "<svg" in page
    assert not re.search(r"https?://|<script|<link|@import|src=", page)  # nothing from elsewhere


def test_text_from_outside_is_escaped(recorded):
    data = recorded.to_dict()
    data["decisions"][0]["inputs"] = "<script>alert(1)</script>"
    from layerzero.telemetry.page import page

    assert "<script" not in page(data)


def test_the_page_in_a_browser(tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no browser is installed")
    (tmp_path / "run.py").write_text(
        "import sys, torch, layerzero as lz\nassert sys.argv[1:] == ['--flag', '3']\n"
        "for _ in range(50): lz.rms_norm(torch.ones(4, 8), torch.ones(8)); lz.softmax(torch.ones(4, 8))\n"
    )
    done = layerzero("report", "-o", "page.html", "run.py", "--flag", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/browser",
        "--window-size=1200,900",
    ]
    page = (tmp_path / "page.html").as_uri()
    seen = subprocess.run(
        [browser, *options, "--dump-dom", page], capture_output=True, text=True, timeout=240, cwd=tmp_path
    ).stdout
    assert "Decisions of a run" in seen and "hwy.norm.rms" in seen and seen.count("<details>") >= 2
    shot = [browser, *options, f"--screenshot={tmp_path}/page.png", page]
    subprocess.run(shot, capture_output=True, timeout=240, cwd=tmp_path, check=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_a_program_that_fails_leaves_its_page(tmp_path):
    (tmp_path / "run.py").write_text(
        "import torch, layerzero as lz\nlz.rms_norm(torch.ones(4, 8), torch.ones(8))\n1 / 0\n"
    )
    done = layerzero("report", "run.py", cwd=tmp_path)
    assert done.returncode != 0 and "ZeroDivisionError" in done.stderr
    assert "hwy.norm.rms" in (tmp_path / "layerzero-report.html").read_text()
    assert layerzero("report", "none.py", cwd=tmp_path).returncode == 2
