"""Artifacts and locks under faults: small numbers of what bench/jit_faults.py does by the thousand."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import layerzero
import pytest
from layerzero.jit import flight, store

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def faults():
    """The report of the script with small numbers, in a process without torch."""
    script = ROOT / "bench/jit_faults.py"
    command = [sys.executable, str(script), "--processes", "64", "--kills", "120", "--flips", "400"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_of_64_processes_that_want_a_key_one_compiles(faults):
    assert faults["single_flight"] == {"processes": 64, "compiled": 1, "failed": 0}


def test_no_process_reads_what_a_killed_one_left(faults):
    found = faults["kills"]
    assert found["partial_artifacts_read"] == 0 and found["longest_wait_for_the_lock_s"] < 1
    assert found["killed_while_they_wrote"] and found["whole_artifacts_read"], "kills came before the end, and after it"


def test_every_damage_is_seen_and_removed(faults):
    assert faults["flips"] == {"damaged": 400, "seen": 400, "removed": 400}


def test_the_script_finds_a_store_that_checks_nothing(monkeypatch):
    """The control: without the digest some damage is not seen."""
    spec = importlib.util.spec_from_file_location("jit_faults", ROOT / "bench/jit_faults.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    real = store.unpacked
    monkeypatch.setattr(store, "unpacked", lambda data: real(data[:-32] + store.hashlib.sha256(data[:-32]).digest()))
    assert script.flips(60)["seen"] < 60


FACTS = {"kernel": "a.b", "kind": [1, 2]}


def test_an_artifact_is_read_as_it_was_written():
    key = store.key_of(FACTS)
    assert store.read(key) is None
    artifact = store.Artifact(FACTS, {"x/y.so": b"\0\1", "z": b""})
    assert store.write(key, artifact) and store.read(key) == artifact
    assert (store.path_of(key).stat().st_mode & 0o777) == 0o600


def test_an_artifact_of_another_key_is_none():
    """As after a file was copied to another name."""
    key, other = store.key_of(FACTS), store.key_of(FACTS | {"kind": [1, 3]})
    store.write(key, store.Artifact(FACTS, {"a": b"1"}))
    store.path_of(other).parent.mkdir(parents=True, exist_ok=True)
    store.path_of(other).write_bytes(store.path_of(key).read_bytes())
    assert store.read(other) is None and store.read(key) is not None


@pytest.mark.parametrize("changed", [{"kernel": "a.c"}, {"kind": [1]}, {"more": None}])
def test_any_difference_in_the_facts_is_another_key(changed):
    assert store.key_of(FACTS | changed) != store.key_of(FACTS)


def test_the_least_recently_used_goes_first():
    # proves: jit.cache_max_mb
    keys = []
    for n in range(4):
        facts = FACTS | {"n": n}
        keys.append(store.key_of(facts))
        store.write(keys[-1], store.Artifact(facts, {"a": bytes(1000)}))
        os.utime(store.path_of(keys[-1]), (n, n))
    store.read(keys[0])  # used now
    size = store.path_of(keys[0]).stat().st_size
    removed = store.cap(2 * size)
    assert len(removed) == 2 and [store.read(key) is not None for key in keys] == [True, False, False, True]


def test_a_cap_removes_what_killed_writers_left(cache):
    store.write(store.key_of(FACTS), store.Artifact(FACTS, {}))
    left = store.path_of(store.key_of(FACTS)).with_name(".half")
    left.write_bytes(b"half")
    store.cap(1 << 30)
    assert left.exists(), "it may still be written"
    os.utime(left, (0, 0))
    store.cap(1 << 30)
    assert not left.exists()


def test_a_cache_that_others_can_write_is_not_read(monkeypatch):
    """tests/python/test_trusted_files.py has what the engine's check refuses."""
    store.write(store.key_of(FACTS), store.Artifact(FACTS, {"a": b"1"}))

    def refuse(*parts):
        raise layerzero.UntrustedFileError(f"{parts}: others can write it")

    monkeypatch.setattr(store.disk_cache, "checked_folder", refuse)
    assert store.read(store.key_of(FACTS)) is None and store.failure_of(store.key_of(FACTS)) is None
    with pytest.warns(UserWarning, match="not kept"):
        assert not store.write(store.key_of(FACTS), store.Artifact(FACTS, {"a": b"2"}))
    assert store.entries() == [] and store.cap(0) == []


def test_a_failure_is_remembered_for_its_facts_alone():
    key = store.key_of(FACTS)
    assert store.failure_of(key) is None
    store.remember_failure(key, FACTS, "nvcc: no such option")
    assert store.failure_of(key) == "nvcc: no such option"
    assert store.failure_of(store.key_of(FACTS | {"library": ["x", "2.0"]})) is None
    store.forget_failure(key)
    assert store.failure_of(key) is None


def test_slots_and_memory_have_a_limit(monkeypatch):
    # proves: jit.memory_mb
    soon = time.monotonic() + 0.1
    with flight.slot(1, soon), pytest.raises(flight.GaveUpError, match="max_concurrent_jit"), flight.slot(1, soon):
        pass
    with flight.slot(2, soon) as first, flight.slot(2, time.monotonic() + 1) as second:
        assert {first, second} == {0, 1}
    monkeypatch.setattr(flight, "free_memory", lambda: 1 << 20)
    flight.wait_for_memory(1 << 20, time.monotonic())
    with pytest.raises(flight.GaveUpError, match=r"2 MiB.*jit\.memory_mb"):
        flight.wait_for_memory(2 << 20, time.monotonic() + 0.1)


def test_a_lock_is_free_when_its_holder_is_gone():
    with flight.of_key("ab", time.monotonic() + 1):
        assert not _can_lock()
    assert _can_lock()


def _can_lock():
    program = (
        "import sys, time\nfrom layerzero.jit import flight\n"
        "try:\n    with flight.of_key('ab', time.monotonic() + 0.2): sys.exit(0)\n"
        "except flight.GaveUpError: sys.exit(3)\n"
    )
    return subprocess.run([sys.executable, "-c", program]).returncode == 0
