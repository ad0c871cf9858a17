"""Files that another user can change decide nothing: policy, cache, records; and the policy decides before any import."""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from layerzero import _layerzero  # noqa: E402
from layerzero.models import disk_cache, packed_file  # noqa: E402
from processes import run  # noqa: E402

CALL = """
import warnings; warnings.simplefilter("ignore")
import layerzero as lz, torch
x, w = torch.ones(2, 8), torch.ones(8)
try:
    lz.rms_norm(x, w)
    print("ran")
except lz.LayerZeroError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("place", ["project", "user", "named"])
def test_a_policy_file_that_others_can_write_stops_every_call(tmp_path, place):
    (tmp_path / "cache").mkdir()
    name = {"project": "layerzero.yaml", "user": "cache/config.yaml", "named": "other.yaml"}[place]
    environment = {"LAYERZERO_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"LAYERZERO_CONFIG": name} if place == "named" else {}
    path = tmp_path / name
    path.write_text("strict_mode: false\n")
    assert run(CALL, tmp_path, **environment).stdout == "ran\n"
    path.chmod(0o666)
    done = run(CALL, tmp_path, **environment)
    assert done.stdout.startswith("UntrustedFileError") and "run `chmod go-w '" in done.stdout, (
        done.stdout + done.stderr
    )
    assert name in done.stdout


def test_the_error_ends_with_another_file(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("{}")
    (tmp_path / "layerzero.yaml").chmod(0o602)
    (tmp_path / "good.yaml").write_text("strict_mode: true\n")
    done = run(CALL + "lz.load_config('good.yaml')\nlz.rms_norm(x, w)\nprint('ran')", tmp_path)
    assert done.stdout.startswith("UntrustedFileError") and done.stdout.endswith("ran\n"), done.stdout + done.stderr


@pytest.mark.parametrize("of", ["cache", "models", "model"])
def test_a_cache_that_others_can_write_is_not_used(tmp_path, monkeypatch, of):
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path))
    folder = disk_cache.model_folder("m", "k")
    folder.mkdir(parents=True)
    checked = {"cache": tmp_path, "models": tmp_path / "models", "model": tmp_path / "models/m"}[of]
    assert disk_cache.model_folder("m", "k") == folder
    refuse(monkeypatch, checked)
    with pytest.raises(lz.UntrustedFileError) as error:
        disk_cache.model_folder("m", "k")
    assert isinstance(error.value, OSError)  # users of the cache go on without it


def refuse(monkeypatch, path):
    """Makes the engine refuse `path`: in a container it takes folders that everybody can write."""
    check = _layerzero.check_trusted

    def refused(given):
        if Path(given) == path:
            raise lz.UntrustedFileError(given, "a folder that no other user can write", "another", "run `chmod go-w`")
        check(given)

    monkeypatch.setattr(_layerzero, "check_trusted", refused)


def test_weights_are_packed_again_without_the_cache(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from layerzero.integrations.transformers.run import weights

    del transformers
    monkeypatch.setenv("LAYERZERO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(weights, "_LEAST_KEPT", 0)
    refuse(monkeypatch, tmp_path)
    linears = {"a": torch.nn.Linear(64, 64)}
    made = []
    with pytest.warns(UserWarning, match="is not kept"):
        blocks = weights._kept(torch.nn.ModuleDict(linears), linears, "int8", lambda: made.append(1) or {})
    assert made and not blocks.cached and "chmod go-w" in blocks.why_not_kept
    assert list(tmp_path.iterdir()) == []


def test_a_packed_file_is_written_whole(tmp_path, monkeypatch):
    path = tmp_path / "w"
    packed_file.write(path, {"a": torch.zeros(8, dtype=torch.uint8)}, {})
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        packed_file.write(path, {"a": torch.ones(8, dtype=torch.uint8)}, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# ---- allow_sources

REPORTS = """
import sys, layerzero as lz, torch
x, w = torch.ones(2, 8), torch.ones(8)
lz.rms_norm(x, w)
lz.explain("rms_norm", x, w)
lz.doctor()
lz.list_kernels()
lz.validate("lz_file.norm", x, w, operation="rms_norm")
try:
    lz.run("rms_norm", x, w, kernel="lz_file.norm")
except lz.LayerZeroError as error:
    print(type(error).__name__)
print([name for name in ("lz_file", "lz_code") if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("allowed", "imported"),
    [("[hwy, torch]", []), ("[]", ["lz_file", "lz_code"]), ("['lz_*']", ["lz_file", "lz_code"])],
)
def test_allow_sources_decides_before_any_import(tmp_path, allowed, imported):
    for name in ("lz_file", "lz_code"):
        (tmp_path / name).mkdir()
        described = planted_library.descriptor(name)
        code = f"def describe(): return {described!r}\n" if name == "lz_code" else ""
        (tmp_path / name / "__init__.py").write_text(planted_library.WORKS + code)
    (tmp_path / "lz_file/capabilities.json").write_text(json.dumps(planted_library.descriptor("lz_file")))
    (tmp_path / "lz-1.dist-info").mkdir()
    (tmp_path / "lz-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lz\nVersion: 1\n")
    (tmp_path / "lz-1.dist-info/entry_points.txt").write_text(
        "[layerzero.backends]\nfile = lz_file:capabilities.json\ncode = lz_code:describe\n"
    )
    (tmp_path / "layerzero.yaml").write_text(f"allow_sources: {allowed}\n")
    done = run(REPORTS, tmp_path)
    assert done.stdout.splitlines()[-1] == str(imported), done.stdout + done.stderr
