"""Dispatch tables of recorded workloads, and the compiled code that tables name."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero import cli  # noqa: E402
from layerzero.jit import library, state, store, work  # noqa: E402
from layerzero.tuning.workload import Entry, Workload  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
WIDE, WEIGHT = torch.ones(6, 40), torch.ones(40)


@pytest.fixture(autouse=True)
def no_table():
    yield
    lz.unload_table()


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "served.json"
    with lz.record(path):
        for _ in range(3):
            lz.rms_norm(WIDE, WEIGHT)
        lz.linear(WIDE, torch.ones(24, 40))
    return path


def test_each_recorded_class_of_calls_has_an_entry(recorded, tmp_path):
    table = lz.solve(recorded)
    assert sorted((e["op"], e["count"], e["bucket"] == {}) for e in table.entries()) == [
        ("mlp.linear", 1, True),
        ("norm.rms", 3, True),
    ]
    assert [e["kernel_id"] for e in lz.solve(str(recorded)).entries()] == [e["kernel_id"] for e in table.entries()]
    table.save(tmp_path / "served.lzt")
    lz.load_table(tmp_path / "served.lzt")
    report = lz.explain("rms_norm", WIDE, WEIGHT)
    assert report.table.use == "used"
    assert report.kernel_id == next(e["kernel_id"] for e in table.entries() if e["op"] == "norm.rms")


def test_calls_of_a_workload_are_not_neighbors(tmp_path):
    def parts(what):
        return {len(one["parts"]) for one in lz.solve(what, plan_mode=True).document["joint"]}

    with lz.record(tmp_path / "served.json") as recording:
        lz.rms_norm(lz.elementwise(WIDE, WIDE), WEIGHT)
    assert len(recording.workload.calls) == 2
    assert 2 not in parts(recording.workload)
    in_order = "elementwise --input f32[6,40] --other f32[6,40]\nrms_norm --input f32[6,40] --weight f32[40]"
    assert 2 in parts(in_order)


def test_a_call_inside_of_a_graph_is_asked_about_as_one():
    line = "input=f32[6,40] weight=f32[40]"
    (entry,) = lz.solve(Workload([Entry("rms_norm", line, execution="graph")])).document["choices"]
    assert entry["class"].startswith("norm.rms ")


def test_the_command_makes_a_table_and_a_lock_that_is_checked(recorded, tmp_path, capfd):
    table, lock = tmp_path / "table.json", tmp_path / "layerzero.lock"
    call = ["solve", "--workload", str(recorded), "--output", str(table), "--lock", str(lock)]
    assert cli.run([*call, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["entries"] == 2
    assert json.loads(lock.read_text())["made_of"] == {"workload": str(recorded)}
    assert cli.run(["solve", "--check", str(lock)]) == 0
    capfd.readouterr()
    assert cli.run([*call, "--bucket", "rows=1", "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["field"] == "--bucket"


@pytest.mark.parametrize(
    ("calls", "got"),
    [((), "no calls"), (("cpu", "cuda:0"), "cpu, cuda:0")],
)
def test_a_workload_of_no_device_or_of_several_is_refused(calls, got):
    entries = [Entry("rms_norm", "input=f32[6,40] weight=f32[40]", device=device) for device in calls]
    with pytest.raises(lz.InvalidRequestError, match=got):
        lz.solve(Workload(entries))


@pytest.fixture
def compiled_kernel(tmp_path, monkeypatch):
    """A kernel of norm.rms that is compiled at the first call of each width, into a folder of the cache."""
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_known", {})
    monkeypatch.setattr(library, "_declared", lambda backend: {"variable": "LZ_TEST_FOLDER"})
    monkeypatch.setattr(state, "_done", {"calls": 0, "ready": 0, "runs": 0})
    lz.configure(jit={"memory_mb": 0}, memory_headroom_mb=0)

    @lz.register_kernel(
        "norm.rms",
        "slow.rms",
        supported_dtypes=["float32"],
        priority=100,
        jit={"when": "first_call", "key": ["hidden"]},
    )
    def rms_norm(input, weight, eps):
        if "LZ_TEST_FOLDER" in os.environ:
            Path(os.environ["LZ_TEST_FOLDER"], f"{input.shape[-1]}.so").write_bytes(b"code")
        return torch.nn.functional.rms_norm(input, input.shape[-1:], weight, eps)

    yield
    assert work.idle(time.monotonic() + 60)
    lz.unregister_kernel("norm.rms", "slow.rms")
    lz.configure(jit={"memory_mb": 2048}, memory_headroom_mb=1024)


def checked():
    return next(one for one in lz.readiness_check().checks if one.name == "table")


def test_a_table_names_the_compiled_code_of_its_kernels(compiled_kernel, tmp_path):
    call = "rms_norm --input f32[rows,40] --weight f32[40]"
    (before,) = lz.solve(call, {"rows": [8]}).plans
    assert before["jit_artifacts"] == [] and before["ops"][0]["kernel_id"] != "slow.rms"
    warmed = lz.warmup("norm.rms", shapes=[(8, 40)], dtype="float32", device="cpu", options={"weight": True})
    assert warmed.complete and warmed.compiled == 1
    table = lz.solve(call, {"rows": [8]})
    (plan,) = table.plans
    assert {one["kernel_id"] for one in plan["ops"]} == {"slow.rms"}
    (key,) = plan["jit_artifacts"]
    assert store.read(key).files == {"40.so": b"code"}
    jsonschema.validate(table.document, json.loads((ROOT / "schemas/table.schema.json").read_text()))

    assert checked().state == "skip"
    table.save(tmp_path / "norm.lzt")
    loaded = lz.load_table(tmp_path / "norm.lzt")
    assert loaded["jit_artifacts"] == [key] and checked().state == "pass"
    store.path_of(key).unlink()
    found = checked()
    assert (found.state, found.code) == ("fail", "JIT_CACHE_INCOMPLETE") and "1 of 1" in found.detail


def test_kernels_are_compiled_before_the_table_is_made(compiled_kernel, capfd):
    call = "rms_norm --input f32[rows,hidden] --weight f32[hidden]"
    sizes = {"rows": [1, 8], "hidden": [40, 48]}
    without = lz.solve(call, sizes)
    assert "slow.rms" not in {e["kernel_id"] for e in without.entries()} and "uncompiled" not in without.document
    before = work.counts().ready
    table = lz.solve(call, sizes, compile_jit=True)
    assert work.counts().ready == before + 2 and table.document["uncompiled"] == []
    assert {e["kernel_id"] for e in table.entries()} >= {"slow.rms"}
    assert all(c["kernel_id"] == "slow.rms" for c in table.document["choices"])
    assert len({key for plan in table.plans for key in plan["jit_artifacts"]}) == 2
    jsonschema.validate(table.document, json.loads((ROOT / "schemas/table.schema.json").read_text()))

    words = ["solve", "--operation", call, "--bucket", "rows=8", "--bucket", "hidden=56", "--compile-jit", "--json"]
    assert cli.run(words) == 0
    assert json.loads(capfd.readouterr().out)["choices"][0]["kernel_id"] == "slow.rms"


def test_a_lock_says_whether_kernels_were_compiled_first(compiled_kernel, tmp_path, capfd):
    """Checked elsewhere, where nothing is compiled yet, the table has the same kernels."""
    call = ["--operation", "rms_norm --input f32[rows,72] --weight f32[72]", "--bucket", "rows=8"]
    lock = tmp_path / "layerzero.lock"
    assert cli.run(["solve", *call, "--compile-jit", "--lock", str(lock), "--quiet"]) == 0
    made = json.loads(lock.read_text())
    assert made["compile_jit"] is True and made["choices"][0]["kernel_id"] == "slow.rms"
    other = [each.replace("72", "80") for each in made["made_of"]["operations"]]
    lock.write_text(lock.read_text().replace(made["made_of"]["operations"][0], other[0]).replace("=72 ", "=80 "))
    capfd.readouterr()
    assert cli.run(["solve", "--check", str(lock), "--json"]) == 0, capfd.readouterr().out
    lock.write_text(lock.read_text().replace('"compile_jit": true', '"compile_jit": false'))
    assert cli.run(["solve", "--check", str(lock), "--budget", "1"]) == 2
    assert "--budget: wanted none with --check of a lock that was made without --compile-jit" in capfd.readouterr().err
    for words in (["--compile-jit"], call[2:], ["--lock", "x"], ["--output", "x"], ["--numerics", "default"]):
        assert cli.run(["solve", "--check", str(lock), *words]) == 2
        why = "nothing is written" if words[0] in ("--lock", "--output") else "the lock has it"
        assert f"{words[0]}: wanted none with --check: {why}" in capfd.readouterr().err


def test_a_check_names_what_was_not_compiled_for_the_lock(compiled_kernel, tmp_path, capfd):
    call = ["--operation", "rms_norm --input f32[rows,88] --weight f32[88]", "--bucket", "rows=8"]
    lock = tmp_path / "layerzero.lock"
    assert cli.run(["solve", *call, "--compile-jit", "--budget", "0", "--lock", str(lock), "--quiet"]) == 0
    (left,) = json.loads(lock.read_text())["uncompiled"]
    capfd.readouterr()
    assert cli.run(["solve", "--check", str(lock), "--json"]) == 1
    (one,) = json.loads(capfd.readouterr().out)["versions"]
    assert one == {"name": f"slow.rms for {left['call']}", "before": left["why"], "after": "compiled"}


@pytest.mark.parametrize("given", [{"budget_s": 1.0}, *({"compile_jit": True, "budget_s": s} for s in (-1, "1", True))])
def test_a_budget_is_seconds_of_compiling(given):
    with pytest.raises(lz.InvalidRequestError, match="budget_s: wanted"):
        lz.solve("rms_norm --input f32[rows,64] --weight f32[64]", {"rows": [8]}, **given)


def test_what_is_not_compiled_is_named_and_waits_no_longer_than_the_budget(compiled_kernel, monkeypatch):
    begun = threading.Event()

    def compile_slowly(self):
        begun.set()
        time.sleep(1)

    monkeypatch.setattr(library.LibraryWork, "compile", compile_slowly)
    start = time.monotonic()
    table = lz.solve("rms_norm --input f32[rows,64] --weight f32[64]", {"rows": [8]}, compile_jit=True, budget_s=0.05)
    assert time.monotonic() - start < 0.9 and begun.wait(10)
    (left,) = table.document["uncompiled"]
    assert left["kernel_id"] == "slow.rms" and "budget" in left["why"] and "not compiled: slow.rms" in str(table)
    assert {e["kernel_id"] for e in table.entries()}.isdisjoint({"slow.rms"})
    table.to_bytes()


def test_a_refused_table_is_not_ready(tmp_path):
    path = tmp_path / "broken.lzt"
    path.write_bytes(b"no table")
    path.chmod(0o600)
    lz.configure(table=str(path))
    lz.rms_norm(WIDE, WEIGHT)
    found = checked()
    lz.configure(table="")
    assert (found.state, found.code) == ("fail", "TABLE_REFUSED") and "broken.lzt" in found.detail
