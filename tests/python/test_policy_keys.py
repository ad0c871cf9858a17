"""Keys of layerzero.yaml change what they say; names in a policy exist; files are replaced as the guide says."""

import contextlib
import json
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from planted_library import WORKS, descriptor  # noqa: E402
from processes import run  # noqa: E402

X, W = torch.ones(2, 8), torch.ones(8)


def kernel():
    return lz.which("rms_norm", X, W)["kernel_id"]


@contextlib.contextmanager
def configured(section, **keys):
    """Keys of one section for the process, taken back at the end."""
    before = {key: lz.policy_in_force()["keys"][f"{section}.{key}"]["value"] for key in keys}
    lz.configure(**{section: keys})
    try:
        yield
    finally:
        lz.configure(**{section: before})


def counters():
    return json.loads(lz._layerzero.stats())


def test_explain_enabled():
    with lz.policy(explain_enabled=False):  # proves: explain_enabled
        for call in (lz.explain, lz.which):
            with pytest.raises(lz.ConfigError, match="explain_enabled: true"):
                call("rms_norm", X, W)
        lz.rms_norm(X, W)


def test_cache_dir(tmp_path, monkeypatch):
    from layerzero.models import disk_cache

    monkeypatch.delenv("LAYERZERO_CACHE_DIR", raising=False)
    before = lz.policy_in_force()["keys"]["cache_dir"]["value"]
    lz.configure(cache_dir=str(tmp_path))  # proves: cache_dir
    try:
        assert disk_cache.cache_dir() == tmp_path
    finally:
        lz.configure(cache_dir=before)
    assert disk_cache.cache_dir() != tmp_path


def test_the_cache_holds_no_more_than_its_size():
    def fill():
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            lz.rms_norm(X.to(dtype), W.to(dtype))

    lz.configure(deterministic=False)  # nothing of before counts
    fill()
    with configured("cache", max_size=1):  # proves: cache.max_size
        before = counters()["cache"]["evicted"]
        fill()
        assert counters()["cache"]["evicted"] > before


def test_selections_expire_after_their_time():
    def selections_of(calls):
        before = counters()["selections"]
        for _ in range(calls):
            lz.rms_norm(X, W)
        return counters()["selections"] - before

    lz.rms_norm(X, W)
    assert selections_of(20) == 0
    with configured("cache", entry_ttl_seconds=0.01):  # proves: cache.entry_ttl_seconds
        lz.rms_norm(X, W)
        end, selected = time.monotonic() + 60, 0
        while selected == 0 and time.monotonic() < end:
            time.sleep(0.02)
            selected = selections_of(1)
        assert selected > 0
    lz.rms_norm(X, W)
    assert selections_of(20) == 0


def test_the_share_of_a_block_bounds_a_workspace():
    def codes(**policy):
        with lz.policy(memory_headroom_mb=0, **policy):
            found = lz.explain("sample_topp", torch.ones(8, 1 << 20), 0.5)
        return {reason.code for c in found.candidates for reason in c.reasons}

    assert "MEMORY_HEADROOM_EXCEEDED" not in codes()
    assert "MEMORY_HEADROOM_EXCEEDED" in codes(memory={"block_fraction": 0})  # proves: memory.block_fraction


def test_generations_are_those_of_the_policy():
    @lz.register_kernel("norm.rms", "tests.hopper", platform="cuda", min_sm=75, supported_dtypes=["float32"],
                        supported_generations=["hopper"], requires_tensor_core_gen=4)  # fmt: skip
    def norm(input, weight, eps):
        return input

    def refused():
        found = lz.explain("rms_norm", X, W, device="h100")
        return {r.code for c in found.candidates if c.kernel_id == "tests.hopper" for r in c.reasons}

    try:
        assert refused() == set()
        with configured("devices", sm_to_generation={"90": "ampere"}):  # proves: devices.sm_to_generation
            assert "GPU_GENERATION_UNSUPPORTED" in refused()
        with configured("devices", generation_to_tc_gen={"hopper": 3}):  # proves: devices.generation_to_tc_gen
            assert refused() == {"TENSOR_CORE_GEN_UNSUPPORTED"}
        assert refused() == set()
    finally:
        lz.unregister_kernel("norm.rms", "tests.hopper")


@pytest.mark.parametrize(
    "keys",
    [
        {"cache_dir": "/tmp"},
        {"cache": {"entry_ttl_seconds": 1}},
        {"devices": {"sm_to_generation": {"90": "hopper"}}},
        {"devices": {"generation_to_tc_gen": {"hopper": 4}}},
    ],
    ids=str,
)
def test_keys_of_the_process_are_refused_in_a_block(keys):
    with pytest.raises(lz.ConfigError, match=r"one of the whole process.*layerzero\.configure\(\)"):
        lz.policy(**keys)


# ---- what is planned, and docs/roadmap.md


def test_the_roadmap_names_what_the_engine_refuses_as_planned():
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs/roadmap.md").read_text()
    table = (root / "src/policy/keys.cpp").read_text().split("kRoadmap = ")[1].split("});")[0]
    planned = [name for name in table.split('"')[1::2]]
    assert len(planned) > 20 and all(f"`{name}`" in text or f"`{name}." in text for name in planned)
    for name in planned:
        section, _, key = name.rpartition(".")
        with pytest.raises(lz.ConfigError, match=r"not supported in this version, see docs/roadmap\.md"):
            lz.configure(**({section: {key: True}} if section else {key: True}))


# ---- names of kernels, libraries and operations

WRONG_NAMES = {
    "library": ({"prefer_sources": ["torhc"]}, "prefer_sources.*'torhc'; did you mean torch"),
    "avoided": ({"avoid_sources": ["torhc"]}, "did you mean torch"),
    "allowed": ({"allow_sources": ["torhc"]}, "did you mean torch"),
    "kernel": (
        {"locks": {"norm.rms": "hwy.nrm.rms"}},
        r"locks\.norm\.rms.*'hwy\.nrm\.rms'; did you mean hwy\.norm\.rms",
    ),
    "kernel of another": ({"locks": {"norm.rms": "hwy.norm.layer"}}, "a kernel of another one"),
    "operation": ({"locks": {"norm.rsm": "hwy.norm.rms"}}, r"did you mean norm\.rms"),
    "operation of a rule": ({"rules": [{"match": {"op": "atention"}, "deny": "hwy.*"}]}, "did you mean attention"),
    "kernel of a rule": ({"rules": [{"deny": "hwy.nrm.rms"}]}, r"did you mean hwy\.norm\.rms"),
    "library of a rule": ({"rules": [{"avoid_sources": ["torhc"]}]}, "did you mean torch"),
    "lock of a rule": ({"rules": [{"lock": "hwy.nrm.rms"}]}, r"did you mean hwy\.norm\.rms"),
}


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_a_name_that_nothing_has_is_refused_with_the_nearest(case):
    keys, message = WRONG_NAMES[case]
    before = lz.policy_in_force()
    for call in (lz.configure, lz.policy):
        with pytest.raises(lz.ConfigError, match=message):
            call(**keys)
    assert lz.policy_in_force() == before


def test_lock_and_kernel_name_the_nearest():
    with pytest.raises(lz.ConfigError, match=r"did you mean hwy\.norm\.rms"):
        lz.lock("norm.rms", "hwy.rms")
    with pytest.raises(lz.NoKernelFoundError, match=r"did you mean hwy\.norm\.rms"):
        lz.rms_norm(X, W, kernel="hwy.nrm.rms")


def test_rules_take_the_aliases_of_operations():
    query = torch.ones(1, 3, 2, 8)
    with lz.policy(rules=[{"match": {"op": "attention.causal"}, "lock": "ref.attention.standard.prefill"}]):
        assert lz.which("attention", query, query, query)["kernel_id"] == "ref.attention.standard.prefill"


def test_a_kernel_may_be_named_from_its_registration_on():
    with pytest.raises(lz.ConfigError, match="tests_named"):
        lz.policy(prefer_sources=["tests_named"])

    @lz.register_kernel("norm.rms", "tests_named.norm", supported_dtypes=["float32"], priority=0)
    def norm(input, weight, eps):
        return input

    try:
        with lz.policy(locks={"norm": "tests_named.norm"}, prefer_sources=["tests_named"]):
            assert kernel() == "tests_named.norm"
    finally:
        lz.unregister_kernel("norm.rms", "tests_named.norm")


@pytest.mark.parametrize("call", ["lz.rms_norm(x, w)", "lz.which('rms_norm', x, w)"])
@pytest.mark.parametrize("numpy", [False, True], ids=["torch", "numpy"])
def test_names_in_the_environment_are_checked_at_the_first_call(tmp_path, call, numpy):
    arrays = "import numpy as np; x, w = np.ones((2, 8), 'f4'), np.ones(8, 'f4')"
    tensors = "import torch; x, w = torch.ones(2, 8), torch.ones(8)"
    code = f"{arrays if numpy else tensors}\nimport layerzero as lz\n{call}"
    wrong = run(code, tmp_path, LAYERZERO_PREFER="torhc")
    assert wrong.returncode == 1 and "ConfigError: environment" in wrong.stderr, wrong.stderr
    assert "'torhc'; did you mean torch?" in wrong.stderr
    right = run(code, tmp_path, LAYERZERO_PREFER="zentorch")  # known, whether it is installed or not
    assert right.returncode == 0, right.stderr


# ---- files


def test_load_config_replaces_a_file_of_any_name(tmp_path):
    (tmp_path / "mine.yaml").write_text("locks: {norm.rms: torch.rms_norm}\n")
    (tmp_path / "other.yaml").write_text("strict_mode: true\n")
    code = 'import layerzero as lz\nlz.load_config("other.yaml")\nprint(lz.policy_in_force()["keys"]["locks"]["value"])'
    assert run(code, tmp_path, LAYERZERO_CONFIG="mine.yaml").stdout.strip() == "{}"


def test_after_a_wrong_project_file_every_call_raises_what_the_warning_said(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("no_such_key: 3\n")
    (tmp_path / "right.yaml").write_text("enabled: false\n")
    code = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import layerzero as lz
import torch
x, w = torch.ones(2, 8), torch.ones(8)
text = str(caught[0].message)
assert "Every operation raises this error until" in text and "load_config()" in text, text
for _ in range(2):
    try:
        lz.rms_norm(x, w)
    except lz.ConfigError as error:
        assert str(error) in text, (str(error), text)
    else:
        raise SystemExit("ran")
assert lz.doctor().problems
lz.load_config("right.yaml")
assert lz.which("rms_norm", x, w)["kernel_id"] == "torch.ref.norm.rms"
assert not lz.doctor().problems
print("ok")
"""
    done = run(code, tmp_path)
    assert done.stdout == "ok\n", done.stdout + done.stderr


def check(tmp_path, text, *options):
    if text is not None:
        (tmp_path / "layerzero.yaml").write_text(text)
    code = f"import sys; sys.argv = ['layerzero', 'policy', 'check', *{list(options)!r}]; from layerzero.cli import run; sys.exit(run(sys.argv[1:]))"
    return run(code, tmp_path)


def test_policy_check_names_the_file_once_and_checks_names(tmp_path):
    missing = check(tmp_path, None)
    assert missing.returncode == 1 and missing.stdout.count("layerzero.yaml") == 1, missing.stdout
    wrong = check(tmp_path, "\nprefer_sources: [torhc]\n")
    assert wrong.returncode == 1 and wrong.stdout.count("layerzero.yaml") == 1, wrong.stdout
    assert "layerzero.yaml:2: prefer_sources" in wrong.stdout and "did you mean torch" in wrong.stdout
    right = check(tmp_path, "prefer_sources: [torch]\n")
    assert right.returncode == 0 and right.stdout == "layerzero.yaml: ok\n", right.stdout + right.stderr


def test_policy_check_says_what_is_not_installed(tmp_path):
    text = "prefer_sources: [openblas, torch]\nlocks: {mlp.linear: openblas.mlp.linear}\n"
    found = check(tmp_path, text)
    assert found.returncode == 0 and found.stdout.count("not installed here") == 1, found.stdout + found.stderr
    assert json.loads(check(tmp_path, None, "--json").stdout)["not_installed"] == ["openblas"]


# ---- entry points

ENTRY = """
import torch, layerzero as lz
x, w = torch.ones(2, 8), torch.ones(8)
{before}
lz.rms_norm(x, w)
lz.list_kernels()
assert "lz_kept_out" not in sys.modules, "imported"
{after}
lz.rms_norm(x.half(), w.half())
assert ("lz_kept_out" in sys.modules) is {imported}
print("ok")
"""


@pytest.mark.parametrize(
    ("before", "after", "imported", "environment"),
    [
        ("", "", False, "allow_sources: [hwy, torch]"),
        ("lz.configure(allow_sources=['hwy'])", "lz.configure(allow_sources=[])", True, ""),
        ("lz.configure(allow_sources=['hwy'])", "lz.configure(allow_sources=['lz_kept_out', 'hwy'])", True, ""),
        ("lz.configure(allow_sources=['hwy'])", "lz.configure(allow_sources=['point', 'hwy'])", True, ""),
        ("scope = lz.policy(allow_sources=['hwy']); scope.__enter__()", "scope.__exit__()", True, ""),
    ],
    ids=["file", "taken back", "package", "entry point", "scope"],
)
def test_allow_sources_decides_before_a_package_is_imported(tmp_path, before, after, imported, environment):
    (tmp_path / "lz_kept_out").mkdir()
    (tmp_path / "lz_kept_out/__init__.py").write_text(WORKS + f"def describe(): return {descriptor('lz_kept_out')!r}")
    (tmp_path / "lz-1.dist-info").mkdir()
    (tmp_path / "lz-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lz\nVersion: 1\n")
    (tmp_path / "lz-1.dist-info/entry_points.txt").write_text("[layerzero.backends]\npoint = lz_kept_out:describe\n")
    (tmp_path / "layerzero.yaml").write_text(environment)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + ENTRY.format(
        before=before, after=after, imported=imported
    )
    done = run(code, tmp_path)
    assert done.stdout == "ok\n", done.stderr
