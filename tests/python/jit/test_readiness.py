"""Each state of the readiness check, provoked; the endpoints for probes; the command."""

import contextlib
import json
import time
import urllib.error
import urllib.request

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, backends, cli  # noqa: E402
from layerzero.jit import flight, library, manifest, readiness, state, store, work  # noqa: E402


@pytest.fixture(autouse=True)
def process(tmp_path, monkeypatch):
    """A process without a warm-up, with a cache and a manifest of its own."""
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_known", {})
    monkeypatch.setattr(state, "_done", {"calls": 0, "ready": 0, "runs": 0})
    monkeypatch.setattr(flight, "free_memory", lambda: 64 << 30)
    before = lz.policy_in_force()["keys"]["jit.manifest_path"]["value"]
    lz.configure(jit={"memory_mb": 0, "manifest_path": str(tmp_path / "manifest.json")})
    yield tmp_path
    assert work.idle(time.monotonic() + 60)
    lz.configure(jit={"memory_mb": 2048, "manifest_path": before})


def check(name, **options):
    (found,) = [c for c in lz.readiness_check(**options).checks if c.name == name]
    return found


def plant(kernel_id="slow.rms"):
    """A kernel that is compiled at its first call, and a manifest with a call that it would get."""

    @lz.register_kernel(
        "norm.rms", kernel_id, supported_dtypes=["float32"], priority=100, jit={"when": "first_call", "key": ["hidden"]}
    )
    def rms_norm(input, weight, eps):
        return torch.nn.functional.rms_norm(input, input.shape[-1:], weight, eps)

    call = {
        "operation": "rms_norm",
        "device": "cpu",
        "tensors": {
            "input": {"dtype": "float32", "shape": [2, 40], "strides": [40, 1]},
            "weight": {"dtype": "float32", "shape": [40], "strides": [1]},
        },
        "scalars": {},
    }
    manifest.record("abc", "Model", [call])


def test_a_process_with_nothing_to_do_is_ready():
    report = lz.readiness_check()
    by_name = {c.name: c.state for c in report.checks}
    assert by_name["policy"] == by_name["memory"] == by_name["descriptors"] == "pass"
    assert by_name["jit"] == by_name["warmup"] == by_name["table"] == "skip"
    assert report.ready == all(s != "fail" for s in by_name.values())
    assert set(report.to_dict()) == {"ready", "checks", "seconds"} and "ready" in str(report)


def test_jit_cache_incomplete():
    lz.configure(jit={"enable_background_compile": False})
    plant()
    found = check("jit")
    assert (found.state, found.code) == ("fail", "JIT_CACHE_INCOMPLETE") and "slow.rms" in found.detail
    assert not lz.readiness_check().ready
    assert check("warmup").state == "warn" and check("warmup", require_warmup=True).state == "fail"
    report = lz.warmup("manifest")
    lz.configure(jit={"enable_background_compile": True})
    assert report.complete and check("jit").state == "pass" and check("warmup").state == "pass"


def test_code_on_the_disk_counts_before_a_warm_up_alone():
    lz.configure(jit={"enable_background_compile": False})
    plant()
    (one,) = manifest.read()["abc"].calls
    report = json.loads(
        _layerzero.explain(_layerzero.ops["rms_norm"], (), readiness.examples.described(one), None, True)
    )
    wanted = report["wanted"]
    kind = tuple(wanted["kind"])
    facts = library.facts_of(library._row("slow.rms", "norm.rms"), "norm.rms", kind, "cpu")
    store.write(library.key_of("slow.rms", "norm.rms", kind, one), store.Artifact(facts, {}))
    assert check("jit").state == "pass"
    state.warmed(lz.WarmupReport((), 0.0, 0, 0))
    assert check("jit").state == "fail", "after a warm-up only what is loaded counts"
    lz.configure(jit={"enable_background_compile": True})


def test_a_compilation_that_runs_is_not_ready():
    work.pause()
    try:
        plant()
        lz.rms_norm(torch.ones(2, 40), torch.ones(40))
        assert check("jit").code == "JIT_CACHE_INCOMPLETE"
    finally:
        work.resume()


def test_a_stale_manifest_warns(process):
    plant()
    lz.warmup("manifest")
    document = json.loads(manifest.path().read_text())
    document["models"]["abc"]["updated_at"] = "2020-01-01T00:00:00+00:00"
    manifest.path().write_text(json.dumps(document))
    assert (check("jit").state, check("jit").code) == ("warn", "SHAPE_MANIFEST_STALE")


def test_only_the_models_calls_count():
    lz.configure(jit={"enable_background_compile": False})
    plant()
    assert check("jit", model=torch.nn.Linear(2, 2)).state == "skip"
    lz.configure(jit={"enable_background_compile": True})


def test_memory(monkeypatch):
    monkeypatch.setattr(flight, "free_memory", lambda: 1 << 20)
    assert (check("memory").state, check("memory").code) == ("fail", "MEMORY_HEADROOM_EXCEEDED")
    monkeypatch.setattr(flight, "free_memory", lambda: 64 << 30)
    lz.configure(memory_headroom_mb=0)
    assert check("memory").state == "warn"


def test_policy():
    lz.configure(enabled=False)
    assert (check("policy").state, check("policy").code) == ("fail", "DISABLED")


def test_descriptors(monkeypatch):
    monkeypatch.setattr(backends, "_problems", {"bad": "bad: no such key"})
    assert check("descriptors").code == "CAPABILITIES_SCHEMA_MISMATCH" and "no such key" in check("descriptors").detail


def test_backends(monkeypatch):
    from layerzero.backends import report

    one = {"name": "some", "installed": True, "compatibility": {"state": "refused"}}
    monkeypatch.setattr(report, "report", lambda imports: [one])
    assert check("backends").code == "BACKEND_INCOMPATIBLE" and "some" in check("backends").detail


@pytest.mark.parametrize(("status", "expected"), [("restart", "fail"), ("degraded", "warn"), ("ok", "pass")])
def test_health(monkeypatch, status, expected):
    reasons = [] if status == "ok" else [{"code": "CONTEXT_LOST", "text": "cuda:0", "fix": "restart"}]
    monkeypatch.setattr(_layerzero, "health", lambda: json.dumps({"status": status, "reasons": reasons}))
    assert check("health").state == expected
    assert readiness.is_alive()[0] == (status == "ok")


def test_graphs(monkeypatch):
    assert check("graphs").state == "skip"
    monkeypatch.setattr(readiness, "_has_cuda", lambda: True)
    assert check("graphs").state in ("warn", "pass")


def test_telemetry():
    lz.configure(metrics={"enabled": True})
    assert check("telemetry").state == "pass"
    lz.configure(metrics={"enabled": False})
    assert check("telemetry").code == "TELEMETRY_OFF"


def test_a_check_of_another_part(monkeypatch):
    monkeypatch.setattr(readiness, "_more", {})
    readiness.add_check("queue", lambda: ("fail", "QUEUE_FULL", "full", "wait"))
    assert check("queue").code == "QUEUE_FULL"


def get(url):
    with contextlib.suppress(urllib.error.HTTPError):
        answer = urllib.request.urlopen(url)
        return answer.status, answer.read().decode()
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_endpoints_and_the_command(monkeypatch, capfd):
    pytest.importorskip("prometheus_client")
    ready = lz.readiness_check().ready
    with lz.serve_metrics(port=0) as server:
        assert get(server.url + "/livez") == (200, "alive\n")
        code, text = get(server.url + "/readyz")
        assert code == (200 if ready else 503) and json.loads(text)["ready"] == ready
        assert cli.run(["readiness", "--url", server.url, "--json"]) == (0 if ready else 1)
        assert json.loads(capfd.readouterr().out)["ready"] == ready
        assert cli.run(["readiness", "--url", server.url, "--strict"]) == 1, "a warning is a failure"
        text = get(server.url + "/metrics")[1]
        for name in ("layerzero_jit_queue", "layerzero_jit_compilations_total", "layerzero_warmup_completeness"):
            assert name in text
    lost = {"status": "restart", "reasons": [{"code": "CONTEXT_LOST", "text": "cuda:0 is lost", "fix": "restart"}]}
    with lz.serve_metrics(port=0) as server:
        monkeypatch.setattr(_layerzero, "health", lambda: json.dumps(lost))
        assert get(server.url + "/livez") == (503, "cuda:0 is lost\n")
        assert get(server.url + "/readyz")[0] == 503
    lz.configure(metrics={"enabled": False})
    assert cli.run(["readiness", "--url", "nowhere", "--json"]) == 2
    assert cli.run(["readiness", "--url", server.url]) == 2, "nobody listens any more"
