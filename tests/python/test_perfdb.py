"""The performance database as a user meets it: commands, the next process's choices, and every state that a database can be in
while operations go on."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
from layerzero import cli, perf_records  # noqa: E402
from layerzero.errors import ConfigError  # noqa: E402

if perf_records.database_state()["sqlite"] is None:
    pytest.skip("no SQLite", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
CALL = "import torch, layerzero as lz\nx, w = torch.ones(4, 64), torch.ones(64)\n"


def rows_of(kernel="torch.rms_norm", us=1.0, **columns):
    """Records of a call of rms_norm in which this kernel is far the fastest."""
    known = {k.kernel_id: k for k in lz.list_kernels("rms_norm")}
    import torch

    return [
        {
            "kernel_id": k,
            "operation": "norm.rms",
            "device_id": lz._layerzero.device_id("cpu"),
            "sm_version": 0,
            "dtype": "float32",
            "head_dim": 0,
            "seq_bucket": 0,
            "batch_bucket": 4,
            "axes": {"...": 4, "hidden": 64},
            "options": {"weight": "given"},
            "cache_state": "warm",
            "execution": "eager",
            "median_us": us if k == kernel else 100 * us,
            "p95_us": 1000.0 * us,
            "samples": 20,
            "variance_us": 0.0,
            "protocol": 1,
            "warmup_runs": 1,
            "timer": "wall",
            "interleaved": True,
            "kernel_version": str(known[k].version),
            "layerzero_version": "0.1.0",
            "build_id": "tests",
            "backend": k.partition(".")[0],
            "backend_version": known[k].library_version,
            "torch_version": torch.__version__,
            "measured_at": "2026-01-31T12:00:00Z",
        }
        | columns
        for k in ("hwy.norm.rms", "torch.rms_norm")
    ]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def database(cache):
    path = cache / "perfdb.sqlite"
    perf_records.write_database(rows_of(), path)
    return path


def environment(cache, **more):
    return {**os.environ, "LAYERZERO_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **more}


def run(cache, script, arguments=(), **more):
    """Runs a script in a process with this cache directory; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", CALL + script, *arguments],
        env=environment(cache, **more),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INTERVAL = """
import json
c = next(c for c in lz.explain("rms_norm", x, w).candidates if c.kernel_id == "torch.rms_norm").to_dict()
low, high = c["measured_interval_us"]
print(json.dumps([low, c["measured_us"], high]))
"""
WHICH = "print(lz.which('rms_norm', x, w)['kernel_id'])"


def test_records_of_the_database_decide_in_the_next_process(cache, database):
    assert run(cache, WHICH) == "torch.rms_norm"
    assert run(cache, WHICH, LAYERZERO_CACHE_DIR=str(cache / "empty")) == "hwy.norm.rms"  # the control
    low, us, high = json.loads(run(cache, INTERVAL))
    assert low < us < high and (us - low) / us == pytest.approx((high - us) / us)
    (cache / "config.yaml").write_text("version: 1\nperfdb:\n  enabled: false\n")
    assert run(cache, WHICH) == "hwy.norm.rms"


def test_the_policy_names_another_file(cache, database, tmp_path):
    elsewhere = tmp_path / "shared" / "times.sqlite"
    perf_records.write_database(rows_of("hwy.norm.rms"), elsewhere)
    (cache / "config.yaml").write_text(f"version: 1\nperfdb:\n  path: {elsewhere}\n")  # proves: perfdb.path
    assert run(cache, WHICH) == "hwy.norm.rms"
    state = json.loads(
        run(cache, f"{WHICH}; import json; print(json.dumps(lz.doctor().to_dict()['perfdb']))").splitlines()[1]
    )
    assert state["path"] == str(elsewhere) and state["rows"] == 2 and state["problem"] is None


MOVED = """
import sys
empty, full = sys.argv[1:]
file = {"path": full + "/perfdb.sqlite"}
for keys in [{"cache_dir": full}, {"cache_dir": empty}, {"cache_dir": "~/cache"}, {"cache_dir": empty, "perfdb": file}, {"perfdb": {"enabled": False}}]:
    lz.configure(**keys)
    print(lz.which("rms_norm", x, w)["kernel_id"])
"""


def test_records_follow_the_policy(cache, database, tmp_path):
    empty = str(tmp_path / "empty")
    chosen = run(tmp_path / "empty", f"{WHICH}\n{MOVED}", [empty, str(cache)], HOME=str(tmp_path))
    own, fast = "hwy.norm.rms", "torch.rms_norm"
    assert chosen.split() == [own, fast, own, fast, fast, own]


def test_the_run_with_the_loaded_versions_decides(cache, database):
    newer = rows_of("hwy.norm.rms", torch_version="99.0.0", measured_at="2027-01-31T12:00:00Z")
    newer[1]["backend_version"] = "99.0.0"
    perf_records.write_database(newer, database)
    assert len(perf_records.read_database(database)) == 4
    assert run(cache, WHICH) == "torch.rms_norm"


# ---- every state: the operation runs, doctor says what is wrong and what to do


def folder_instead(path):
    path.unlink()
    path.mkdir()


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


def sql(statement):
    def change(path):
        db = sqlite3.connect(path)
        db.execute(statement)
        db.commit()
        db.close()

    return change


STATES = {
    "a folder in its place": (folder_instead, "a folder"),
    "a loop of symbolic links": (loop, "a symbolic link"),
    "text": (lambda path: path.write_text("text" * 1000), "perfdb vacuum"),
    "cut off": (lambda path: os.truncate(path, path.stat().st_size // 2), "perfdb vacuum"),
    "one byte": (lambda path: path.write_bytes(b"x"), "perfdb vacuum"),
    "a row changed behind it": (sql("UPDATE records SET median_us = 1e-3"), "perfdb vacuum"),
    "a row gone": (sql("DELETE FROM records WHERE kernel_id = 'torch.rms_norm'"), "perfdb vacuum"),
    "a newer format": (sql("PRAGMA user_version = 99"), "upgrade LayerZero"),
    "another program's": (sql("PRAGMA application_id = 1"), "another program"),
    "no table": (sql("DROP TABLE records"), "perfdb vacuum"),
    "deleted": (lambda path: path.unlink(), None),
    "empty": (lambda path: os.truncate(path, 0), None),
}


# A child for each database: its first selection reads it.
EACH = """
import json, os, sys
for path in json.loads(sys.argv[1]):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        lz.configure(perfdb={"path": path})
        lz.rms_norm(x, w)
        print(json.dumps([lz.which('rms_norm', x, w)['kernel_id'], list(lz.doctor().problems)]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(json.dumps(["ended badly", []]), flush=True)
"""


@pytest.fixture(scope="module")
def found_in_each_state(tmp_path_factory):
    """What an operation ran and doctor said, for each state of a database."""
    folder = tmp_path_factory.mktemp("states")
    paths = {state: folder / f"{number}.sqlite" for number, state in enumerate([*STATES, "intact"])}
    for state, path in paths.items():
        perf_records.write_database(rows_of(), path)
        if state in STATES:
            STATES[state][0](path)
    lines = run(folder / "cache", EACH, arguments=[json.dumps([str(path) for path in paths.values()])]).splitlines()
    return {state: (paths[state], *json.loads(line)) for state, line in zip(paths, lines, strict=True)}


def test_the_control_of_the_states(found_in_each_state):
    assert found_in_each_state["intact"][1:] == ("torch.rms_norm", [])


@pytest.mark.parametrize("state", STATES)
def test_operations_run_and_doctor_says_what_is_wrong(found_in_each_state, state):
    path, kernel, problems = found_in_each_state[state]
    assert kernel == "hwy.norm.rms"
    if STATES[state][1] is None:
        assert problems == []
    else:
        assert str(path) in problems[0] and STATES[state][1] in problems[0]


def test_vacuum_mends_what_doctor_found(cache, database):
    sql("UPDATE records SET median_us = 1e-3 WHERE kernel_id = 'torch.rms_norm'")(database)
    done = perf_records.vacuum_database(database)
    assert done["kept"] == 1 and "checksum" in done["damage"] and Path(done["damaged_file"]).exists()
    assert [row["kernel_id"] for row in perf_records.read_database(database)] == ["hwy.norm.rms"]


LOCKED = """
import time
lz.rms_norm(x, w)
print("ran", flush=True)
while lz.doctor().counters.measured_records < 2 or lz.which('rms_norm', x, w)['kernel_id'] != 'torch.rms_norm':
    time.sleep(0.01)
print(lz.which('rms_norm', x, w)['kernel_id'], flush=True)
"""


def test_a_locked_database_delays_its_records_and_no_operation(cache, database):
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    child = subprocess.Popen(
        [sys.executable, "-c", CALL + LOCKED], env=environment(cache), stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline() == "ran\n"  # while the lock is held
        holder.execute("ROLLBACK")
        assert child.stdout.readline() == "torch.rms_norm\n"
        assert child.wait(60) == 0
    finally:
        child.kill()
        holder.close()


def test_without_sqlite_the_files_of_records_serve(cache, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libsqlite3.so.0").write_text("no library")
    library = {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    keep = f"""
import json
from layerzero.bench import operations
print(operations.keep(json.loads({json.dumps(json.dumps(rows_of()))!s})))
{WHICH}
print(str(lz.doctor()))
print(lz.doctor().problems)
"""
    out = run(cache, keep, **library)
    assert out.splitlines()[0] == str(cache / "prior.records.json")
    assert out.splitlines()[1] == "torch.rms_norm"
    assert "no performance database" in out and "libsqlite3" in out and out.endswith("[]")
    assert run(cache, WHICH, **library) == "torch.rms_norm"
    assert run(cache, WHICH) == "torch.rms_norm"  # and with SQLite too


# ---- the queue


def test_queued_records_are_written_when_the_process_ends(cache):
    script = f"""
import json
from layerzero import perf_records
counts = perf_records.queue(json.loads({json.dumps(json.dumps(rows_of()))!s}))
print(counts["added"], counts["dropped"])
"""
    assert run(cache, script) == "2 0"
    assert len(perf_records.read_database(cache / "perfdb.sqlite")) == 2
    cache.joinpath("config.yaml").write_text("version: 1\nperfdb:\n  enabled: false\n")
    assert run(cache, script) == "0 0"


def test_a_queue_that_cannot_be_written_is_a_problem_of_doctor(cache):
    cache.mkdir()
    (cache / "perfdb.sqlite").mkdir()
    script = f"""
import json
from layerzero import perf_records
perf_records.queue(json.loads({json.dumps(json.dumps(rows_of()))!s}))
print(perf_records.flush()["failed"])
lz.rms_norm(x, w)
print(*lz.doctor().problems)
"""
    out = run(cache, script).splitlines()
    assert out[0] == "2" and "a folder" in out[1]


def test_a_wrong_record_is_refused_before_the_queue():
    with pytest.raises(ConfigError, match="median_us"):
        perf_records.queue(rows_of(median_us=-1.0))


# ---- commands


@pytest.fixture
def answer(capfd):
    def call(*arguments):
        code = cli.run(["perfdb", *map(str, arguments), "--json"])
        return code, json.loads(capfd.readouterr().out)

    return call


def test_two_machines_are_merged_in_any_order(answer, tmp_path):
    older, newer = rows_of(us=1.0), rows_of(us=2.0, measured_at="2027-01-31T12:00:00Z")
    other = rows_of(us=3.0, device_id="another CPU, AVX2, L1d 32 KiB, 4 cores")
    perf_records.write_database([*older, *other], tmp_path / "a.sqlite")
    perf_records.write(tmp_path / "b.json", newer)
    results = []
    for number, order in enumerate((("a.sqlite", "b.json"), ("b.json", "a.sqlite"))):
        merged = tmp_path / f"{number}.sqlite"
        code, report = answer("merge", *(tmp_path / name for name in order), "--database", merged)
        assert code == 0 and sum(one["added"] for one in report["files"]) == 4
        results.append(perf_records.read_database(merged))
    assert results[0] == results[1]
    assert {row["median_us"] for row in results[0]} == {2.0, 200.0, 3.0, 300.0}


def test_what_is_exported_is_imported(answer, database, tmp_path):
    for name in ("all.json", "all.sqlite"):
        assert answer("export", tmp_path / name, "--database", database)[1]["records"] == 2
        target = tmp_path / f"from-{name}.sqlite"
        code, report = answer("import", tmp_path / name, "--database", target)
        assert code == 0 and report["files"][0]["added"] == 2
        assert perf_records.read_database(target) == perf_records.read_database(database)
    assert answer("export", tmp_path / "none.json", "--database", database, "--operation", "softmax")[1]["records"] == 0


def test_show_has_rankings_and_diff_has_changes(answer, database, tmp_path):
    code, report = answer("show", "--database", database, "--operation", "rms_norm")
    assert code == 0 and report["runs"][0]["calls"] == 1
    assert [k["kernel_id"] for k in report["calls"][0]["kernels"]] == ["torch.rms_norm", "hwy.norm.rms"]
    perf_records.write(tmp_path / "same.json", rows_of(us=1.01, measured_at="2027-01-31T12:00:00Z"))
    perf_records.write(tmp_path / "other.json", rows_of("hwy.norm.rms"))
    assert answer("diff", database, tmp_path / "same.json")[0] == 0
    code, report = answer("diff", database, tmp_path / "other.json")
    assert code == 1 and report["changed"][0]["best_after"] == "hwy.norm.rms" and report["calls"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "no_such.json"],
        ["merge", "no_such.sqlite"],
        ["show", "--operation", "no_such"],
        ["diff", "no_such.json"],
    ],
)
def test_wrong_command_lines_have_exit_code_2(answer, arguments, database):
    code, report = answer(*arguments, *(["--database", database] if arguments[0] != "diff" else []))
    assert code == 2 and report["error"]["got"]


def test_a_damaged_source_is_an_error_and_adds_nothing(answer, database, tmp_path):
    target = tmp_path / "target.sqlite"
    os.truncate(database, database.stat().st_size // 2)
    code, report = answer("merge", database, "--database", target)
    assert code == 1 and "layerzero perfdb vacuum" in report["error"]["message"]
    assert perf_records.read_database(target) == []
