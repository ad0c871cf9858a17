"""Faults of compilations: processes that want the same, kills in the middle, damaged artifacts, and what a warm start saves.

    python bench/jit_faults.py --kills 1000 --flips 10000 --json bench/results/jit-faults.json

Processes are forked from one that has the store alone, without torch. A compilation here writes a library's files and an
artifact of a few hundred KiB, slowly. `--warm-start` needs torch and a C++ compiler: Inductor compiles a reference twice.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from layerzero.jit import flight, store

FACTS = {"kernel": "bench", "kind": [1, 2, 3]}
FILES = {f"part{i}.so": random.Random(i).randbytes(64 << 10) for i in range(4)}


def compile_once(log, seconds=0.05):
    """What every process does: it compiles unless another one has."""
    key = store.key_of(FACTS)
    with flight.of_key(key, time.monotonic() + 120):
        if store.read(key) is not None:
            return
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        store.write(key, store.Artifact(FACTS, FILES))


def forked(work):
    """Runs `work` in a child; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def single_flight(processes):
    """Returns how many of the processes compiled, and how many failed."""
    with fresh_cache() as folder:
        log = folder / "compiled"
        children = [forked(lambda: compile_once(log)) for _ in range(processes)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        return {
            "processes": processes,
            "compiled": len(log.read_text().splitlines()),
            "failed": sum(code != 0 for code in codes),
        }


def whole_run(log, key):
    """Returns the seconds of a compilation in a child, from its fork to its end."""
    begin = time.monotonic()
    os.waitpid(forked(lambda: compile_once(log, seconds=0.0)), 0)
    store.path_of(key).unlink()
    return time.monotonic() - begin


def kills(count, seed=0):
    """Kills a compilation at a random moment, `count` times. An artifact that is read is whole, and the next one to ask gets
    the lock at once."""
    draw, partial, survived, slowest = random.Random(seed), 0, 0, 0.0
    with fresh_cache() as folder:
        log, key = folder / "compiled", store.key_of(FACTS)
        usual = sorted(whole_run(log, key) for _ in range(9))
        for _ in range(count):
            child = forked(lambda: compile_once(log, seconds=0.0))
            time.sleep(draw.uniform(usual[0] / 4, usual[-3] * 1.5))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found = store.read(key)
            partial += found is not None and found.files != FILES
            survived += found is not None
            begin = time.monotonic()
            with flight.of_key(key, begin + 10):
                slowest = max(slowest, time.monotonic() - begin)
            if found is not None:
                store.path_of(key).unlink()
        left = len(list(store.path_of(key).parent.glob(".*")))
        begin = time.monotonic()
        compile_once(log, seconds=0.0)
        again = time.monotonic() - begin
    return {
        "kills": count,
        "partial_artifacts_read": partial,
        "whole_artifacts_read": survived,
        "killed_while_they_wrote": left,
        "longest_wait_for_the_lock_s": slowest,
        "next_compilation_s": again,
    }


def damage(data, draw):
    """Returns the bytes of an artifact with one fault: a bit flipped, an end cut off, two bytes swapped, bytes appended."""
    kind = draw.randrange(8)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    if kind == 1:
        return data + draw.randbytes(draw.randrange(1, 64))
    changed, at = bytearray(data), draw.randrange(len(data))
    if kind == 2:
        other = draw.randrange(len(data))
        changed[at], changed[other] = changed[other], changed[at]
    if bytes(changed) == data:
        changed[at] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flips(count, seed=0):
    """Damages an artifact `count` times: each has to be seen, and removed."""
    draw, seen, removed = random.Random(seed), 0, 0
    facts, files = FACTS | {"kernel": "flips"}, {"a.so": random.Random(1).randbytes(4096)}
    with fresh_cache():
        key = store.key_of(facts)
        path, whole = store.path_of(key), store.packed(store.Artifact(facts, files))
        path.parent.mkdir(parents=True)
        for _ in range(count):
            path.write_bytes(damage(whole, draw))
            seen += store.read(key) is None
            removed += not path.exists()
    return {"damaged": count, "seen": seen, "removed": removed}


def warm_start():
    """Returns the seconds until a compiled reference is ready, in two processes: without artifacts, and with them."""
    program = (
        "import json, torch, layerzero as lz\n"
        "x, t = torch.ones(2, 3, 4, 8), torch.ones(3, 8)\n"
        "with lz.policy(allow_sources=['torch', 'inductor']), lz.compile_references() as compiled: lz.rope(x, t, t)\n"
        "from layerzero.jit import work\n"
        "found = compiled.wait()\n"
        "print(json.dumps([[c.state, c.seconds, c.detail] for c in found] + [work.counts()._asdict()]))\n"
    )
    found = []
    with fresh_cache() as folder:
        for name in ("compiled", "from_cache"):
            environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / name)}
            out = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
            )
            found.append(json.loads(out.stdout.splitlines()[-1]))
    return {"first": found[0], "second": found[1]}


class fresh_cache:
    """A cache folder of its own, for this process and its children."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="layerzero-jit-")
        self._before = os.environ.get("LAYERZERO_CACHE_DIR")
        os.environ["LAYERZERO_CACHE_DIR"] = self._folder.name
        return pathlib.Path(self._folder.name)

    def __exit__(self, *_):
        os.environ.pop("LAYERZERO_CACHE_DIR")
        if self._before is not None:
            os.environ["LAYERZERO_CACHE_DIR"] = self._before
        self._folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--flips", type=int, default=10000)
    parser.add_argument("--warm-start", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    report = {
        "single_flight": single_flight(options.processes),
        "kills": kills(options.kills),
        "flips": flips(options.flips),
    }
    if options.warm_start:
        report["warm_start"] = warm_start()
    report["ok"] = (
        report["single_flight"]["compiled"] == 1
        and report["single_flight"]["failed"] == 0
        and report["kills"]["partial_artifacts_read"] == 0
        and report["kills"]["longest_wait_for_the_lock_s"] <= 1
        and report["flips"]["seen"] == options.flips
    )
    text = json.dumps(report, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
