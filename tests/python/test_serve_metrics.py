"""lz.serve_metrics and metrics.*: counts of runs, Prometheus's text over HTTP and in a file."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("prometheus_client")

import layerzero as lz  # noqa: E402
from layerzero.inspection.metrics import quantile  # noqa: E402
from planted_library import BINDINGS, OWN, W, X  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

PACKAGE = Path(lz.__file__).parent.parent


@pytest.fixture
def counting():
    lz.configure(metrics={"enabled": True})  # proves: metrics.enabled
    yield
    lz.configure(metrics={"enabled": False})


def run_of(kernel=OWN):
    found = [r for r in lz.metrics().to_dict()["runs"] if (r["operation"], r["kernel_id"]) == ("norm.rms", kernel)]
    return found[0] if found else {"runs": 0, "hits": 0, "misses": 0, "failures": 0, "fallbacks": 0, "buckets": {}}


def get(url, **headers):
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30).read().decode()


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_way_to_call_is_counted(counting, binding):
    BINDINGS[binding]()
    before = run_of()
    for _ in range(3):
        BINDINGS[binding]()
    after = run_of()
    assert after["runs"] == before["runs"] + 3
    assert after["hits"] + after["misses"] == before["hits"] + before["misses"] + 3
    assert sum(after["buckets"].values()) == sum(before["buckets"].values()) + 3


def test_hits_and_misses(counting):
    lz._layerzero.invalidate()
    before = run_of()
    for _ in range(5):
        lz.rms_norm(X, W)
    after = run_of()
    assert (after["misses"] - before["misses"], after["hits"] - before["hits"]) == (1, 4)


def test_nothing_is_counted_when_off():
    lz.rms_norm(X, W)
    before = run_of()
    lz.rms_norm(X, W)
    assert not lz.metrics().counting and run_of() == before


def test_failures_and_fallbacks(counting):
    @lz.register_kernel("norm.rms", "tests.counts.fails", supported_dtypes=["float32"], priority=100)
    def fails(input, weight, eps, weight_offset):
        raise ValueError("planted")

    try:
        for _ in range(2):
            lz.rms_norm(X, W)
        found = run_of("tests.counts.fails")
        answered = sum(r["fallbacks"] for r in lz.metrics().to_dict()["runs"] if r["operation"] == "norm.rms")
    finally:
        lz.unregister_kernel("norm.rms", "tests.counts.fails")
    assert (found["runs"], found["failures"], found["buckets"]) == (2, 2, {})
    assert answered >= 2


def test_the_server_says_what_prometheus_reads():
    with lz.serve_metrics(port=0) as server:
        try:
            for _ in range(10):
                lz.rms_norm(X, W)
            families = {f.name: f for f in text_string_to_metric_families(get(server.url + "/metrics"))}
            state = json.loads(get(server.url + "/state.json"))
        finally:
            lz.configure(metrics={"enabled": False})
        assert server.host == "127.0.0.1"
    runs = {s.labels["cache"]: s.value for s in families["layerzero_kernel_runs"].samples if s.labels["kernel"] == OWN}
    assert sum(runs.values()) == run_of()["runs"] and runs["hit"] >= 9
    histogram = [s for s in families["layerzero_kernel_run_seconds"].samples if s.labels["kernel"] == OWN]
    bounds = [(float(s.labels["le"]), s.value) for s in histogram if s.name.endswith("_bucket")]
    assert bounds == sorted(bounds) and bounds[-1] == (float("inf"), run_of()["runs"])
    assert {s.value for s in histogram if s.name.endswith("_count")} == {run_of()["runs"]}
    assert {"layerzero_cache_entries", "layerzero_library_tried", "layerzero_fallbacks"} <= set(families)
    assert state["pid"] == os.getpid() and state["counting"]
    with pytest.raises(urllib.error.URLError):
        get(server.url + "/metrics")


def test_a_web_page_of_another_name_gets_nothing():
    with lz.serve_metrics(port=0) as server:
        lz.configure(metrics={"enabled": False})
        assert "layerzero" in get(server.url + "/metrics", Host=f"localhost:{server.port}")
        for path, host, code in (
            ("/metrics", "evil.example", 403),
            ("/state.json", "evil.example:80", 403),
            ("/", None, 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(server.url + path, **({"Host": host} if host else {}))
            assert refused.value.code == code


def test_an_address_in_use_is_an_error_with_advice():
    with lz.serve_metrics(port=0) as server:
        lz.configure(metrics={"enabled": False})
        with pytest.raises(lz.InvalidRequestError, match="port=0 takes a free port"):
            lz.serve_metrics(port=server.port)
        with pytest.raises(lz.WrongTypeError, match="0 to 65535"):
            lz.serve_metrics(port=70000)


SERVICE = """
import sys, time, urllib.request, torch, layerzero as lz
x, w = torch.ones(4, 8), torch.ones(8)
for _ in range(7): lz.rms_norm(x, w)
from layerzero.telemetry import exports
if "metrics.listen" in exports._running:
    url = exports._running["metrics.listen"][1].url
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    print([line for line in text.splitlines() if line.startswith("layerzero_kernel_runs_total") and '"hit"' in line])
"""


def service(code=SERVICE, **variables):
    env = os.environ | {"PYTHONPATH": str(PACKAGE)} | variables
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


def test_the_environment_alone_serves_and_writes(tmp_path):
    file = tmp_path / "layerzero.prom"
    done = service(LAYERZERO_METRICS="0", LAYERZERO_METRICS_FILE=str(file))  # proves: metrics.listen
    assert done.returncode == 0 and not done.stderr, done.stderr
    line = 'layerzero_kernel_runs_total{cache="hit",kernel="hwy.norm.rms",operation="norm.rms"} 6.0'
    assert done.stdout.strip() == str([line])
    assert line in file.read_text()  # proves: metrics.file
    assert [path.name for path in tmp_path.iterdir()] == [file.name] and file.stat().st_mode & 0o777 == 0o644


def test_an_address_in_use_warns_a_service_and_stops_nothing():
    with lz.serve_metrics(port=0) as server:
        lz.configure(metrics={"enabled": False})
        done = service(LAYERZERO_METRICS=f"127.0.0.1:{server.port}")
    assert done.returncode == 0 and "nothing is exported as the policy says" in done.stderr


def test_a_child_by_fork_runs_without_the_server():
    code = (
        SERVICE
        + "import os\npid = os.fork()\nif pid == 0:\n    lz.rms_norm(x, w)\n    os._exit(0)\nassert os.waitpid(pid, 0)[1] == 0\n"
    )
    assert service(code, LAYERZERO_METRICS="0").returncode == 0


def test_the_file_is_written_again(tmp_path):
    file = tmp_path / "layerzero.prom"
    lz.configure(metrics={"file": str(file), "interval_s": 0.1})  # proves: metrics.interval_s
    try:
        before = file.stat().st_mtime_ns
        deadline = time.monotonic() + 30
        while file.stat().st_mtime_ns == before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert file.stat().st_mtime_ns != before
    finally:
        lz.configure(metrics={"file": "", "interval_s": 15})
    with pytest.raises(lz.errors.FileError, match="there.prom"):
        lz.configure(metrics={"file": str(tmp_path / "none/there.prom")})
    lz.configure(metrics={"file": ""})


@pytest.mark.parametrize("listen", ["nowhere", ":9464", "127.0.0.1:70000", "127.0.0.1:"])
def test_a_wrong_address_is_refused(listen):
    with pytest.raises(lz.ConfigError, match="127.0.0.1:9464"):
        lz.configure(metrics={"listen": listen})


def test_quantiles():
    assert quantile({}, 0.5) is None
    assert quantile({"1024": 100}, 1.0) == pytest.approx(1024e-9)
    assert quantile({"1024": 50, "4096": 50}, 0.5) == pytest.approx(1024e-9)
    assert 2048e-9 < quantile({"1024": 50, "4096": 50}, 0.99) <= 4096e-9
    assert quantile({"1": 1}, 0.0) is not None
