"""What every command prints with --json follows its schema in schemas/cli/, and so do the stored results."""

import io
import json
import os
import pkgutil
import sys
from pathlib import Path

import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero  # noqa: E402
from layerzero import cli  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "schemas/cli"
NORM = ["--input", "f32[2,8]", "--weight", "f32[8]"]
QUERY = ["--query", "bf16[1,16,4,64]", "--key", "bf16[1,16,4,64]", "--value", "bf16[1,16,4,64]"]
HOST = ["bench", "host", "--operation", "rms_norm", "--rounds", "1"]


def places(name, document):
    """Where a document breaks its schema."""
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text())
    cls = jsonschema.validators.validator_for(schema)
    cls.check_schema(schema)
    return ["/".join(map(str, e.absolute_path)) + " " + e.message for e in cls(schema).iter_errors(document)]


@pytest.fixture
def answer(capfd):
    """Runs a command with --json; checks its output against its schema; gives exit code and document."""

    def call(name, *arguments):
        code = cli.run([*arguments, "--json"])
        document = json.loads(capfd.readouterr().out)
        assert places(name, document) == []
        return code, document

    return call


def test_every_command_has_a_schema():
    commands = {module.name for module in pkgutil.iter_modules(cli.__path__) if not module.name.startswith("_")}
    published = {path.name.removesuffix(".schema.json") for path in FOLDER.iterdir()}
    assert published == commands | {"error"}


READY = 0 if layerzero.readiness_check().ready else 1  # of the machine: a library that does not fit is not ready
CALLS = {
    "doctor": (["doctor"], 0),
    "backends": (["backends"], 0),
    "list": (["list"], 0),
    "list of one": (["list", "attention", "--installed"], 0),
    "coverage": (["coverage", "h100", "cpu"], 0),
    "coverage of all": (["coverage", "--all"], 0),
    "which": (["which", "rms_norm", *NORM], 0),
    "explain": (["explain", "rms_norm", *NORM], 0),
    "explain elsewhere": (["explain", "attention", *QUERY, "--device", "b200"], 0),
    "explain no kernel": (["explain", "rms_norm", *NORM, "--kernel", "zentorch.rms_norm"], 1),
    "explain transforms": (["explain", "attention", *QUERY[:-1], "f32[1,16,4,64]", "--layout", "BHSD"], 0),
    "validate": (["validate", "hwy.norm.rms", *NORM], 0),
    "validate refused": (["validate", "zentorch.rms_norm", *NORM], 1),
    "policy_show": (["policy", "show", "--all"], 0),
    "readiness": (["readiness"], READY),
    "bench_host": (HOST, 0),
    "bench_threads": (["bench", "threads", "--rounds", "2"], 0),
    "bench_ops": (["bench", "ops", "--operations", "cast", "--rounds", "4"], 0),
    "solve": (["solve", "--operation", "rms_norm --input f32[rows,8] --weight f32[8]", "--bucket", "rows=4,16"], 0),
    "bench_regret": (["bench", "regret", "--operations", "cast", "--rounds", "6", "--every", "6"], 0),
    "error": (["explain", "no_such"], 2),
    "error of the work": (["which", "rms_norm", *NORM, "--kernel", "zentorch.rms_norm"], 1),
    "error of usage": (["list", "--no-such-option"], 2),
}


@pytest.mark.parametrize("case", CALLS)
def test_output_follows_the_schema(answer, case):
    arguments, code = CALLS[case]
    assert answer(case.partition(" ")[0], *arguments)[0] == code


def test_a_transform_is_part_of_the_schema(answer):
    _, report = answer("explain", *CALLS["explain transforms"][0])
    kinds = {transform["kind"] for candidate in report["candidates"] for transform in candidate["transforms"]}
    assert "cast" in kinds


def test_locks_and_rules_name_their_origins(answer):
    rule = {"match": {"operation": "norm.*"}, "prefer": ["torch"]}
    with layerzero.policy(rules=[rule], locks={"norm.rms": "hwy.norm.rms"}):
        keys = answer("policy_show", "policy", "show")[1]["keys"]
    assert len(keys["rules"]["origins"]) >= 1 and "norm.rms" in keys["locks"]["origins"]


def test_a_key_of_the_policy_has_one_form():
    shown, doctor = (json.loads((FOLDER / f"{name}.schema.json").read_text()) for name in ("policy_show", "doctor"))
    assert shown["$defs"]["policy_entry"] == doctor["$defs"]["policy_entry"]


def test_policy_check(answer, tmp_path):
    (tmp_path / "right.yaml").write_text("version: 1\n")
    (tmp_path / "wrong.yaml").write_text("version: one\n")
    assert answer("policy_check", "policy", "check", str(tmp_path / "right.yaml"))[0] == 0
    assert answer("policy_check", "policy", "check", str(tmp_path / "wrong.yaml"))[0] == 1


def test_cache(answer, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path))
    for number, kind in enumerate(("bf16-v1", "f32-v1", "f16-v1")):
        folder = tmp_path / "models/abc" / kind
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(b"x" * 1024)
        os.utime(folder, (number, number))
    (tmp_path / "models/abc/.half-made").mkdir()
    code, document = answer("cache_list", "cache", "list")
    assert code == 0 and document["bytes"] == 3072 and document["folder"] == str(tmp_path)
    assert [entry["kind"] for entry in document["entries"]] == ["bf16-v1", "f32-v1", "f16-v1"]
    code, document = answer("cache_cap", "cache", "cap", "2KiB")
    assert code == 0 and [entry["kind"] for entry in document["removed"]] == ["bf16-v1"]
    assert not (tmp_path / "models/abc/bf16-v1").exists() and (tmp_path / "models/abc/f32-v1/config.json").exists()
    assert answer("cache_cap", "cache", "cap", "1GiB")[1] == {"removed": [], "freed_bytes": 0}
    assert answer("cache_clear", "cache", "clear")[1]["freed_bytes"] == 2048
    assert answer("cache_list", "cache", "list")[1]["entries"] == []
    assert answer("error", "cache", "cap", "much")[0] == 2


def test_a_lock_is_checked_by_exit_codes(answer, tmp_path):
    lock, table = tmp_path / "layerzero.lock", tmp_path / "norm.json"
    call = ["--operation", "rms_norm --input f32[rows,8] --weight f32[8]", "--bucket", "rows=4,16"]
    assert answer("solve", "solve", *call, "--lock", str(lock), "--output", str(table))[0] == 0
    code, document = answer("solve", "solve", "--check", str(lock))
    assert code == 0 and document["ok"] and document["calls"] == 2
    for other in (lock, table):
        assert answer("diff", "diff", str(lock), str(other))[0] == 0
    changed = json.loads(lock.read_text())
    changed["versions"]["torch"] = "0.0"
    lock.write_text(json.dumps(changed))
    assert answer("diff", "diff", str(lock))[0] == 0, "a version alone changes no kernel"
    code, document = answer("solve", "solve", "--check", str(lock))
    assert code == 1 and [one["name"] for one in document["versions"]] == ["torch"]
    changed["choices"][0]["kernel_id"] = "torch.rms_norm"
    lock.write_text(json.dumps(changed))
    code, document = answer("diff", "diff", str(lock))
    assert code == 1 and document["choices"][0]["kernel_before"] == "torch.rms_norm"
    assert answer("error", "solve", *call, "--check", str(lock))[0] == 2
    assert answer("error", "diff", str(tmp_path / "none"))[0] == 1


def test_health(answer):
    layerzero.reset_health()  # breakers that other tests left
    code, document = answer("health_show", "health", "show")
    assert code == (document["status"] != "ok") and len(document["quarantine"]) > 0
    assert answer("health_reset", "health", "reset", "hwy.*") == (0, {"kernel": "hwy.*", "removed": 0})
    code, document = answer("error", "health", "reset", "hwy.norm.rmz")
    assert code == 2 and document["error"]["type"] == "UnknownNameError" and document["error"]["field"] == "kernel"
    assert "hwy.norm.rms" in document["error"]["fix"]
    for other in ("mine.quick", "inductor.*"):  # may be of an application, or of what is registered later
        for _ in range(2):
            assert answer("health_reset", "health", "reset", other) == (0, {"kernel": other, "removed": 0})


def test_graphs(answer, monkeypatch):
    from layerzero.cli import bench_ops
    from layerzero.torch import captures

    monkeypatch.setattr(bench_ops, "cuda_device", lambda name: "cpu")
    monkeypatch.setattr(captures, "DEVICE", "cpu")
    monkeypatch.setattr(captures, "record", lambda run, iterations: captures.Recorded(lambda: None, run(), 0))
    monkeypatch.setattr(captures, "wait", lambda: None)
    monkeypatch.setattr(captures, "free_bytes", lambda: 0)
    code, document = answer("graphs_verify", "graphs", "verify", "--operations", "rms_norm")
    assert code == 1 and document["failed"] > 0  # a replay that does nothing leaves what spoiled the results
    assert {row["outcome"] for row in answer("graphs_show", "graphs", "show")[1]["proofs"]} == {"wrong"}
    layerzero.reset_health()


def test_run(tmp_path, capfd):
    program = tmp_path / "program.py"
    program.write_text("import torch, layerzero as lz\nprint('text')\nlz.rms_norm(torch.ones(2, 8), torch.ones(8))\n")
    for kernels, code in (("hwy.*", 0), ("none.*", 1)):
        assert cli.run(["run", "--json", "--require", kernels, str(program)]) == code
        document = json.loads(capfd.readouterr().out)
        assert places("run", document) == []
        assert document["ok"] is (code == 0) and len(document["refused"]) == code and len(document["ran"]) == 1


def test_record_and_tune(answer, tmp_path, capfd):
    layerzero.configure(cache_dir=str(tmp_path))
    program = "import torch, layerzero as lz; lz.rms_norm(torch.ones(2, 8), torch.ones(8))"
    path = str(tmp_path / "workload.json")
    cli_call = ["record", "-o", path, "--json", "--", sys.executable, "-c", program]
    assert cli.run(cli_call) == 0
    assert places("record", json.loads(capfd.readouterr().out)) == []
    schema = json.loads((ROOT / "schemas/workload.schema.json").read_text())
    jsonschema.validate(json.loads(Path(path).read_text()), schema)
    code, document = answer("tune", "tune", path, "--samples", "6", "--variants", "1", "--budget", "300")
    assert (code, document["measured"]) == (0, 1)


def test_bench_select(capfd):
    code = cli.run(["bench", "select", "--repeat", "1", "--json"])
    document = json.loads(capfd.readouterr().out)
    # A package without the benchmark program says so.
    assert places("bench_select" if "bars" in document else "error", document) == []
    assert code in (0, 1)


def test_bench_models(answer):
    pytest.importorskip("transformers")
    answer("bench_models", "bench", "models", "--families", "gpt2", "--rounds", "1")


def test_bench_models_with_a_crash(answer, monkeypatch):
    pytest.importorskip("transformers")
    from layerzero.bench import family_bench

    monkeypatch.setattr(family_bench, "kernelize", None)
    assert answer("bench_models", "bench", "models", "--families", "gpt2", "--rounds", "1")[0] == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    import small_model

    return str(small_model.save(tmp_path_factory.mktemp("model")))


def test_bench_e2e(answer, folder):
    arguments = ["bench", "e2e", "--model", folder, "--rounds", "1", "--tokens", "2", "--dtypes", "f32"]
    code, report = answer("bench_e2e", *arguments)
    assert code == (0 if report["ok"] else 1) and [r["dtype"] for r in report["results"]] == ["f32"]


def test_demo(answer, folder):
    code, report = answer("demo", "demo", "--model", folder, "--dtype", "f32", "--question", "hello")
    assert code == 0 and report["ok"] and report["choices"] and report["replaced"]


def test_generate(answer, folder, capfd, monkeypatch):
    arguments = ["generate", "--model", folder, "--dtype", "f32", "--max-tokens", "3"]
    assert answer("generate", *arguments, "--prompt", "hello")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nthere\n"))
    assert cli.run([*arguments, "--json"]) == 0
    decoder, text, turns = json.JSONDecoder(), capfd.readouterr().out, []
    while text.strip():
        turn, end = decoder.raw_decode(text.lstrip())
        turns.append(turn)
        text = text.lstrip()[end:]
    assert [turn["prompt"] for turn in turns] == ["hello", "there"]
    assert [places("generate", turn) for turn in turns] == [[], []]


RESULTS = {
    "ops": "bench_ops",
    "select": "bench_select",
    "host": "bench_host",
    "threads": "bench_threads",
    "e2e": "bench_e2e",
    "models": "bench_models",
}
STORED = [(path, RESULTS[kind]) for kind in RESULTS for path in sorted((ROOT / "bench/results").glob(f"{kind}-*.json"))]


@pytest.mark.parametrize(("path", "name"), STORED, ids=[path.stem for path, _ in STORED])
def test_stored_results_follow_the_schema(path, name):
    document = json.loads(path.read_text())
    document.pop("measured_on", None)
    assert places(name, document) == []


@pytest.mark.parametrize("name", ["doctor", "explain", "validate"])
def test_a_schema_refuses_what_is_missing_and_what_is_new(answer, name):
    _, document = answer(name, *CALLS[name][0])
    for key in document:
        assert places(name, {k: v for k, v in document.items() if k != key}), key
    assert places(name, document | {"new": 1})
    for key, value in document.items():
        assert places(name, document | {key: "text" if isinstance(value, float) else 1.5}), key


def test_programs(answer, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import torch, layerzero as lz\nlz.rms_norm(torch.ones(2, 8), torch.ones(8))\n")
    code, document = answer(
        "policy_freeze", "policy", "freeze", "-o", str(tmp_path / "frozen.yaml"), "--json", str(script)
    )
    assert code == 0 and document["locks"] == {"norm.rms": "hwy.norm.rms"}


def test_the_profile_of_a_model(answer, tmp_path):
    pytest.importorskip("transformers")
    from small_model import save

    code, document = answer(
        "explain", "explain", "--model", str(save(tmp_path)), "--dtype", "f32", "--prompt-tokens", "4"
    )
    assert code == 0 and {"prompt", "token"} == document["phases"].keys()
    assert any(row["operation"] == "linear" for row in document["phases"]["prompt"]["operations"])


def test_perfdb(answer, tmp_path, monkeypatch):
    valid = ROOT / "tests/perfdb/records/valid.json"
    into = ["--database", str(tmp_path / "perfdb.sqlite")]
    for command, *arguments in (
        ("import", str(valid), *into),
        ("merge", str(valid), *into),
        ("show", *into),
        ("show", "--operation", "rms_norm", *into),
        ("export", str(tmp_path / "copy.sqlite"), *into),
        ("diff", str(valid), str(tmp_path / "copy.sqlite")),
        ("vacuum", *into),
    ):
        code, document = answer(f"perfdb_{command}", "perfdb", command, *arguments)
        assert code == 0, document
    assert document["invalid"] == 1 and document["kept"] == 1
