"""Compiled code from elsewhere than a library's wheel: found without an import, part of versions, refused where it does not fit."""

import hashlib
import json
import shutil
import subprocess

import pytest

pytest.importorskip("torch")

from layerzero.backends import FOLDER, availability, compatibility, prebuilt, runtime  # noqa: E402
from layerzero.backends.runtime import Runtime  # noqa: E402

REQUIRES = [{"import": "lz_fi", "distribution": "lz-fi"}]
DECLARED = (
    {"distribution": "lz-fi-cache", "import": "lz_fi_cache", "what": "modules"},
    {"folder": "data/aot", "what": "modules of its own"},
    {"variable": "LZ_FI_DIR", "what": "a folder that is named"},
)


def distribution(site, name, version, files):
    """Writes a package with its metadata, as pip does."""
    package = site / name.replace("-", "_")
    for file, content in files.items():
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    info = site / f"{package.name}-{version}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    rows = [f"{package.name}/{f},sha256={hashlib.sha256(c).hexdigest()},{len(c)}" for f, c in files.items()]
    info.joinpath("RECORD").write_text("\n".join(rows) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    folder.mkdir()
    raises = b"raise RuntimeError('imported')\n"
    distribution(
        folder, "lz-fi", "0.6.13", {"__init__.py": raises, "data/aot/norm/norm.so": b"code", "data/aot/a.txt": b"x"}
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(prebuilt, "_declared", lambda backend: DECLARED if backend == "lz_fi" else ())
    monkeypatch.setattr(availability, "_installed", availability.optional.version_of)
    monkeypatch.setattr(runtime, "of_process", lambda: Runtime("CUDA", 13, "torch"))
    return folder


def add_cache(site, version, content=b"module"):
    distribution(site, "lz-fi-cache", version, {"__init__.py": b"raise RuntimeError('imported')\n", "m.so": content})


def version_in_records():
    descriptor = {"backend": "lz_fi", "backend_version": "0.6", "requires": REQUIRES, "ops": {}}
    return availability.availability_of(descriptor)["*"]["version"]


def test_what_is_installed_is_found(site, monkeypatch, tmp_path):
    (own,) = prebuilt.of("lz_fi", REQUIRES)
    assert own["files"] == 2 and own["version"] is None and own["problem"] is None and own["name"].endswith("data/aot")
    add_cache(site, "0.6.13+cu130")
    named = tmp_path / "cubins"
    named.mkdir()
    monkeypatch.setenv("LZ_FI_DIR", str(named))
    assert len(prebuilt.of("lz_fi", REQUIRES)) == 2  # an empty folder holds nothing
    named.joinpath("x.cubin").write_bytes(b"code")
    cache, _, last = prebuilt.of("lz_fi", REQUIRES)
    assert (cache["version"], cache["cuda"], cache["files"]) == ("0.6.13+cu130", "13.0", 2)
    assert cache["problem"] is None and last["name"] == str(named)
    assert prebuilt.of("other", REQUIRES) == [] == prebuilt.of("lz_fi", [])


def test_versions_of_records_name_the_code(site):
    own = version_in_records()
    assert own.startswith("0.6.13+prebuilt.")
    add_cache(site, "0.6.13+cu130")
    assert version_in_records() not in (own, "0.6.13") and version_in_records() == version_in_records()
    site.joinpath("lz_fi/data/aot/norm/norm.so").write_bytes(b"kode")
    changed = version_in_records()
    shutil.rmtree(site / "lz_fi_cache-0.6.13+cu130.dist-info")
    assert len({own, changed, version_in_records()}) == 3


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("0.6.13+cu130", ""),
        ("0.6.13", ""),
        ("0.6.12+cu130", "another release than lz-fi 0.6.13: install lz-fi-cache==0.6.13"),
        ("0.6.13+cu129", "built with CUDA 12.9, and this process uses CUDA 13"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_import(site, version, problem):
    add_cache(site, version)
    why = compatibility.check("lz_fi", REQUIRES)
    assert problem in why and bool(why) == bool(problem)
    record = {"version": "0.6.13", "tested_with": "0.6", "installed": True, "platform": "cuda", "missing": []}
    about = compatibility.state("lz_fi", record, REQUIRES, {"devices": []})
    assert about["state"] == ("refused" if problem else "expected") and about["prebuilt"][0]["version"] == version


def test_the_cuda_of_files_without_a_version_is_read_from_them(site, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    runtime = tmp_path / "libcudart.so.12"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-"]
    subprocess.run([*command, "-o", runtime, "-Wl,-soname,libcudart.so.12"], input=b"int r;", check=True)
    module = site / "lz_fi/data/aot/norm/norm.so"
    links = ["-Wl,--no-as-needed", f"-L{tmp_path}", "-l:libcudart.so.12"]
    subprocess.run([*command, "-o", module, *links], input=b"int m;", check=True)
    (own,) = prebuilt.of("lz_fi", REQUIRES)
    assert own["cuda"] == "12" and "this process uses CUDA 13" in own["problem"]


def test_shipped_lists_are_of_shipped_backends():
    for path in FOLDER.glob("*/prebuilt.json"):
        assert (path.parent / "capabilities.json").exists()
        for one in json.loads(path.read_text()):
            assert set(one) in ({"distribution", "import", "what"}, {"folder", "what"}, {"variable", "what"}), path
