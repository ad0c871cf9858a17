"""Dispatch tables: a table decides as selection would, is refused where it is stale, and is used only where it was made for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero import _layerzero, tables  # noqa: E402
from layerzero.contracts import contracts  # noqa: E402
from layerzero.tables.calls import Call, calls_of, size_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NORM = "rms_norm --input bf16[batch*seq_len,576] --weight bf16[576]"
ATTENTION = (
    "attention --query bf16[batch,seq_len,8,64] --key bf16[batch,seq_len,4,64] --value bf16[batch,seq_len,4,64] "
    "--layout BSHD --causal true"
)
LINEAR = "linear --input bf16[batch*seq_len,576] --weight bf16[1536,576]"
BUCKETS = {"seq_len": (16, 256), "batch": (1, 4)}


@pytest.fixture(scope="module")
def table():
    return lz.solve([NORM, ATTENTION, LINEAR], BUCKETS, model_id="tests")


@pytest.fixture
def path(table, tmp_path):
    table.save(tmp_path / "tests.lzt")
    yield tmp_path / "tests.lzt"
    lz.unload_table()
    lz.configure(table="")


def norm(rows, dtype=torch.bfloat16, hidden=576):
    return torch.ones(rows, hidden, dtype=dtype), torch.ones(hidden, dtype=dtype)


def test_sizes_are_expressions_of_buckets():
    assert size_of("batch * seq_len + 1", {"batch": 3, "seq_len": 5}) == 16
    for wrong in ("batch ** 2", "other", "__import__('os')", "1.5", "batch[0]", ""):
        with pytest.raises(lz.InvalidRequestError):
            size_of(wrong, {"batch": 3})
    (call,) = calls_of("# a comment\n\n2 x " + NORM)
    assert call.count == 2 and call.names == {"batch", "seq_len"}
    assert call.at({"batch": 2, "seq_len": 8}) == "rms_norm --input bf16[16,576] --weight bf16[576]"


def test_a_table_has_the_form_of_its_schema(table):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "schemas/table.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(table.document, schema)
    assert {plan["bucket"]["seq_len"] for plan in table.plans} == {16, 256}
    assert {"norm.rms", "mlp.linear"} <= {entry["op"] for entry in table.entries()}


def test_a_lock_does_not_depend_on_the_order_of_buckets():
    """Calls of one class at the ends of two buckets are one entry of a table and two choices of a lock."""
    one, two = (lz.solve(NORM, dict(order)) for order in (BUCKETS.items(), reversed(BUCKETS.items())))
    assert one.document["choices"] == two.document["choices"]
    assert len(one.document["choices"]) == 4  # 16, 64, 256 and 1024 rows


def test_wrong_buckets_are_refused():
    for buckets in ({"seq_len": (16, 256)}, {"seq_len": (256, 16), "batch": (1,)}, {"seq_len": (), "batch": (1,)}):
        with pytest.raises(lz.InvalidRequestError, match="shape_buckets"):
            lz.solve(NORM, buckets)
    with pytest.raises(lz.InvalidRequestError):
        lz.solve(3)


def kernel_without_table(call, *arguments, **options):
    tables.engine("ignore", on=True)
    try:
        return lz.explain(call, *arguments, **options)
    finally:
        tables.engine("ignore", on=False)


CALLS = (
    [("rms_norm", norm(rows), {}) for rows in (1, 4, 15, 16, 17, 63, 64, 255, 256, 300, 1024)]
    + [
        ("linear", (torch.ones(rows, 576, dtype=torch.bfloat16), torch.ones(1536, 576, dtype=torch.bfloat16)), {})
        for rows in (1, 2, 7, 8, 16, 17, 33, 200, 256, 1000)
    ]
    + [
        (
            "attention",
            (
                torch.ones(batch, length, 8, 64, dtype=torch.bfloat16),
                torch.ones(batch, length, 4, 64, dtype=torch.bfloat16),
                torch.ones(batch, length, 4, 64, dtype=torch.bfloat16),
            ),
            {"layout": "BSHD", "causal": True},
        )
        for batch in (1, 2, 4)
        for length in (2, 16, 17, 100, 256)
    ]
)


def test_a_table_decides_as_selection_does(path):
    lz.load_table(path)
    used = 0
    for operation, arguments, options in CALLS:
        wanted = kernel_without_table(operation, *arguments, **options)
        found = lz.explain(operation, *arguments, **options)
        assert found.kernel_id == wanted.kernel_id, (operation, [a.shape for a in arguments])
        assert lz.which(operation, *arguments, **options)["kernel_id"] == wanted.kernel_id
        used += found.table.use == "used"
        assert found.table.use in ("used", "outside")
    assert used > len(CALLS) * 0.7
    state = lz.table_state()
    assert state["path"] == str(path) and state["selections"]["used"] >= 1


def test_a_table_decides_before_scores(path, table):
    """The table's kernel is taken even where selection would now choose another one."""
    arguments = norm(64)
    wanted = lz.explain("rms_norm", *arguments)
    other = next(
        c.kernel_id for c in wanted.candidates if c.admissible and c.kernel_id != wanted.kernel_id and not c.reference
    )
    document = json.loads(json.dumps(table.document))
    for plan in document["plans"]:
        for entry in plan["ops"]:
            entry["kernel_id"] = other if entry["op"] == "norm.rms" else entry["kernel_id"]
    lz.DispatchTable(document).save(path)
    lz.load_table(path)
    assert lz.explain("rms_norm", *arguments).kernel_id == other
    assert lz.which("rms_norm", *arguments)["kernel_id"] == other
    before = lz.table_state()["selections"]["used"]
    lz.rms_norm(*norm(63))
    assert lz.table_state()["selections"]["used"] == before + 1
    with lz.policy(locks={"norm.rms": wanted.kernel_id}):  # a lock comes first
        assert lz.explain("rms_norm", *arguments).kernel_id == wanted.kernel_id
    lz.unload_table()
    assert lz.explain("rms_norm", *arguments).kernel_id == wanted.kernel_id


def test_constraints_of_the_tables_kernel_are_checked(path, table):
    """A kernel that does not take the call is not run, whatever a table says."""
    document = json.loads(json.dumps(table.document))
    for plan in document["plans"]:
        for entry in plan["ops"]:
            entry["kernel_id"] = "zentorch.rms_norm" if entry["op"] == "norm.rms" else entry["kernel_id"]
    lz.DispatchTable(document).save(path)
    lz.load_table(path)
    found = lz.explain("rms_norm", *norm(64))
    assert found.kernel_id not in (None, "zentorch.rms_norm")
    assert found.table.use == "kernel refused" and found.table.kernel_id == "zentorch.rms_norm"
    assert lz.rms_norm(*norm(64)).shape == (64, 576)
    assert lz.table_state()["selections"]["kernel refused"] >= 1


def test_a_call_outside_is_a_miss_and_still_runs(path):
    lz.load_table(path)
    for arguments in (norm(4 * 256 + 1), norm(64, torch.float32)):
        found = lz.explain("rms_norm", *arguments)
        assert found.table.use == "outside" and found.table.reason.code == "PLAN_BUCKET_MISS"
        assert found.kernel_id and lz.rms_norm(*arguments).shape == arguments[0].shape
    assert lz.table_state()["selections"]["outside"] >= 1
    assert lz.explain("softmax", torch.ones(4, 8)).table.reason.code == "PLAN_BUCKET_MISS"
    assert lz.explain("rms_norm", *norm(64)).table.reason is None


def test_another_policy_asks_no_table(path):
    lz.load_table(path)
    with lz.policy(deterministic=True):
        assert lz.explain("rms_norm", *norm(64)).table.use == "other policy"
    with lz.policy(log_selections=False):
        assert lz.explain("rms_norm", *norm(64)).table.use == "used"


def test_a_kernel_that_is_registered_later_makes_a_table_stale(path):
    lz.load_table(path)

    @lz.register_kernel("norm.rms", "tests.later", supported_dtypes=["bfloat16"], accepts=["weight"])
    def kernel(input, weight, eps, weight_offset=None):
        raise AssertionError("not called")

    try:
        assert lz.explain("rms_norm", *norm(64)).table.use == "stale"
        with pytest.raises(lz.VersionMismatchError, match="capabilities_hash"):
            lz.load_table(path)
    finally:
        lz.unregister_kernel("norm.rms", "tests.later")
    assert lz.explain("rms_norm", *norm(64)).table.use == "used"


STALE = {
    "hardware_signature": "cuda_sm90_cu130_none",
    "capabilities_hash": "0" * 64,
    "schema_version": "2.0",
    "policy": {"strict_mode": True},
    "policy_hash": "0" * 16,
    "tp_size": 8,
    "version of layerzero": None,
    "version of torch": None,
    "version of other": None,
}


@pytest.mark.parametrize("field", STALE)
def test_a_stale_table_is_refused_with_the_reason(path, table, field):
    document = json.loads(json.dumps(table.document))
    name = field.removeprefix("version of ")
    if name != field:
        document["versions"][name] = "0.0.1"
    else:
        document[field] = STALE[field]
    before = lz.table_state()["path"]
    if field == "schema_version":
        with pytest.raises(lz.ConfigError, match="schema_version"):
            lz.DispatchTable(document).to_bytes()
        return
    lz.DispatchTable(document).save(path)
    with pytest.raises(lz.VersionMismatchError, match=field.replace("tp_size", "tp.size")) as error:
        lz.load_table(path)
    assert "layerzero solve" in str(error.value)
    assert lz.table_state()["path"] == before


def test_marks_are_demanded(path, table):
    with pytest.raises(lz.VersionMismatchError, match="tp_invariant"):
        lz.load_table(path, tp_invariant=True)
    with pytest.raises(lz.VersionMismatchError, match="numerics"):
        lz.load_table(path, numerics="default")


def test_one_table_for_engines_of_other_tp_sizes(tmp_path):
    made = lz.solve(NORM, BUCKETS, tp_invariant=True, tp_sizes=[1, 8], numerics="default")
    assert made.document["policy"]["tp.require_tp_invariant"] is True
    made.save(tmp_path / "both.lzt")
    with pytest.raises(lz.VersionMismatchError, match="require_tp_invariant"):
        lz.load_table(tmp_path / "both.lzt", tp_invariant=True)
    program = f"""
import sys, torch, layerzero as lz
lz.configure(**{json.dumps(policy_keys(made))!r} and __import__("json").loads({json.dumps(policy_keys(made))!r}))
lz.configure(tp={{"size": int(sys.argv[1]), "require_tp_invariant": True}})
print(lz.load_table({str(tmp_path / "both.lzt")!r}, tp_invariant=True, numerics="default")["entries"])
print(lz.explain("rms_norm", torch.ones(64, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16)).table.use)
"""
    for size, code in (("1", 0), ("8", 0), ("4", 1)):
        done = run(program, size)
        assert done.returncode == code, done.stderr
        assert code or done.stdout.split()[-1] == "used", done.stdout
        assert not code or "tp.size" in done.stderr


def policy_keys(made):
    """The table's settings as sections, without those of tp."""
    keys = {}
    for name, value in made.document["policy"].items():
        section, dot, leaf = name.rpartition(".")
        if section != "tp":
            keys |= {section: keys.get(section, {}) | {leaf: value}} if dot else {leaf: value}
    return keys


def run(program, *arguments, **environment):
    env = os.environ | {"PYTHONPATH": str(Path(lz.__file__).parent.parent)} | environment
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=env, capture_output=True, text=True, timeout=300
    )


def test_the_policy_names_a_table(path):  # proves: table
    lz.configure(table=str(path))
    assert lz.explain("rms_norm", *norm(64)).table.use == "used"
    lz.configure(table=str(path) + ".none")
    lz.explain("rms_norm", *norm(64))
    assert "readable dispatch table" in lz.table_state()["problem"]
    assert any(".none" in problem for problem in lz.doctor().problems)
    lz.configure(table="")
    assert lz.explain("rms_norm", *norm(64)).table is None
    assert lz.table_state() == {"path": None, "problem": None}


def test_damaged_files_are_refused(path):
    text = path.read_bytes()
    for at in range(0, len(text), max(1, len(text) // 200)):
        damaged = bytearray(text)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(lz.ConfigError):
            lz.load_table(path)
    for size in (0, 7, 100, len(text) - 1):
        path.write_bytes(text[:size])
        with pytest.raises((lz.ConfigError, lz.NotInstalledError)):
            lz.load_table(path)
    path.write_bytes(text)
    lz.load_table(path)


def test_signatures_are_required_where_the_policy_wants_them(path):
    pem, public = _layerzero.new_key()
    lz.configure(security={"require_signatures": "all", "trusted_keys": [public]})
    try:
        with pytest.raises(lz.UntrustedFileError):
            lz.load_table(path)
        signature = path.with_name(path.name + ".sig")
        signature.write_text(_layerzero.sign(path.read_bytes(), pem.encode(), "key"))
        lz.load_table(path)
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        with pytest.raises((lz.UntrustedFileError, lz.ConfigError)):
            lz.load_table(path)
    finally:
        lz.configure(security={"require_signatures": "none", "trusted_keys": []})


def test_a_table_that_others_can_write_is_refused(path):
    path.chmod(0o666)
    with pytest.raises(lz.UntrustedFileError):
        lz.load_table(path)


def test_both_forms_are_one_table(path, table, tmp_path):
    table.save(tmp_path / "tests.json")
    text, binary = lz.DispatchTable.read(tmp_path / "tests.json"), lz.DispatchTable.read(path)
    assert text.document == json.loads(json.dumps(table.document))
    kept = {(e["op"], e["kernel_id"], json.dumps(e["bucket"], sort_keys=True)) for e in binary.entries()}
    assert kept <= {(e["op"], e["kernel_id"], json.dumps(e["bucket"], sort_keys=True)) for e in text.entries()}
    assert binary.document["versions"] == table.document["versions"]
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(lz.ConfigError):
        lz.DispatchTable.read(tmp_path / "other.json")


def test_a_table_in_force_is_not_copied_into_the_next(path, table):
    document = json.loads(json.dumps(table.document))
    for plan in document["plans"]:
        for entry in plan["ops"]:
            entry["kernel_id"] = "zentorch.rms_norm" if entry["op"] == "norm.rms" else entry["kernel_id"]
    lz.DispatchTable(document).save(path)
    lz.load_table(path)
    again = lz.solve([NORM, ATTENTION, LINEAR], BUCKETS, model_id="tests")
    assert [e["kernel_id"] for e in again.entries()] == [e["kernel_id"] for e in table.entries()]


def test_memory_is_flat_over_repeated_loads(path):
    program = f"""
import resource, layerzero as lz, torch
x, w = torch.ones(64, 576, dtype=torch.bfloat16), torch.ones(576, dtype=torch.bfloat16)
def pages(): return int(open("/proc/self/statm").read().split()[1])
for round in range(300):
    lz.load_table({str(path)!r}); lz.explain("rms_norm", x, w)
    if round == 99: before = pages()
print(pages() - before)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 512, f"{done.stdout} more pages after 200 loads"


def test_every_benchmark_call_is_decided_alike(tmp_path):
    """Tables of one call each would prove little: one table of the calls of bench/ops, asked again about all of them."""
    from layerzero.bench.cases import arguments_of
    from layerzero.bench.operations import all_cases

    cases = [case for case in all_cases(["rms_norm", "swiglu", "softmax", "linear"], None)][:80]
    texts, calls = [], []
    for case in cases:
        arguments = arguments_of(case.operation, case.line)
        words, plain = [case.operation], True
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                plain &= value.is_contiguous()
                value = f"{str(value.dtype).removeprefix('torch.')}[{','.join(map(str, value.shape))}]"
            words.append(f"--{name.replace('_', '-')} {str(value).lower() if isinstance(value, bool) else value}")
        if plain:
            texts.append(" ".join(words))
            calls.append((case.operation, arguments))
    lz.solve(texts).save(tmp_path / "bench.lzt")
    lz.load_table(tmp_path / "bench.lzt")
    try:
        found = [(lz.explain(op, **given), kernel_without_table(op, **given)) for op, given in calls]
    finally:
        lz.unload_table()
    assert [a.kernel_id for a, _ in found] == [b.kernel_id for _, b in found]
    assert sum(a.table.use == "used" for a, _ in found) >= 0.9 * len(found) and len(found) > 20


def test_a_class_says_where_a_decision_ends():
    """Within its class a call has one kernel; one step outside, the key differs."""
    report = lz.explain("rms_norm", *norm(64)).to_dict()
    assert report["class"]["input.dtype"] == "bfloat16"
    names = {name for name, given in report["class"].items() if isinstance(given, list)}
    assert names <= set(report["key"]) | {f"{p['name']}.ndim" for p in contracts()["rms_norm"]["params"]} | names
    assert Call(NORM).explain({"batch": 1, "seq_len": 64}, None, False)["kernel_id"] == report["kernel_id"]
