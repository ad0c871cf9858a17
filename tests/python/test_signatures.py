"""Signatures of what decides which code runs: plugins, descriptors of other packages, measured records, C libraries."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer")

import layerzero as lz  # noqa: E402
import planted_library  # noqa: E402
from layerzero import _layerzero, cli, perf_records  # noqa: E402
from layerzero.host import signing  # noqa: E402
from processes import run  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RECORDS = '{"schema_version": "1.0", "records": []}'


@pytest.fixture
def key(tmp_path, capsys):
    """A private key's file and its public key."""
    path = tmp_path / "key.pem"
    assert cli.run(["sign", "--new-key", str(path)]) == 0
    return path, capsys.readouterr().out.split()[-1]


def sign(path, key):
    assert cli.run(["sign", str(path), "--key", str(key[0])]) == 0


# ---- layerzero sign


def test_a_new_key_is_its_owners_alone_and_replaces_none(tmp_path, key, capsys):
    assert key[0].stat().st_mode & 0o777 == 0o600
    before = key[0].read_bytes()
    assert cli.run(["sign", "--new-key", str(key[0])]) == 2
    assert "a file that can be made" in capsys.readouterr().err and key[0].read_bytes() == before


def test_the_signature_follows_the_file(tmp_path, key, capsys):
    file = tmp_path / "a.json"
    file.write_text(RECORDS)
    assert cli.run(["sign", str(file), "--key", str(key[0]), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["files"]
    assert answer == [{"path": str(file), "signature": f"{file}.sig", "key": key[1]}]
    assert json.loads((tmp_path / "a.json.sig").read_text())["key"] == key[1]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x"],
        ["x", "--new-key", "y"],
        ["--key", "x"],
        ["--key", "x", "--new-key", "y"],
        ["--check"],
        ["x", "--check", "--key", "y"],
    ],
)
def test_other_arguments_are_refused(arguments, capsys):
    assert cli.run(["sign", *arguments]) == 2
    assert "layerzero sign" in capsys.readouterr().err


def test_a_key_that_others_can_read_is_refused(tmp_path, key, capsys):
    key[0].chmod(0o640)
    (tmp_path / "a").write_text("x")
    assert cli.run(["sign", str(tmp_path / "a"), "--key", str(key[0])]) == 2
    assert f"chmod 600 '{key[0]}'" in capsys.readouterr().err


def test_what_is_no_key_is_refused(tmp_path, capsys):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    wrong.chmod(0o600)
    assert cli.run(["sign", str(wrong), "--key", str(wrong)]) == 1
    assert "an Ed25519 private key in PEM" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_makes_keys_and_reads_signatures(tmp_path, capsys):
    key, public, text = tmp_path / "k.pem", tmp_path / "p.pem", tmp_path / "text"
    made = subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], capture_output=True)
    if made.returncode:
        pytest.skip("this openssl has no Ed25519")
    key.chmod(0o600)
    text.write_text("content")
    sign(text, (key, ""))
    signature = json.loads((tmp_path / "text.sig").read_text())
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    (tmp_path / "message").write_bytes(b"layerzero file signature 1\n" + signature["sha256"].encode())
    (tmp_path / "raw").write_bytes(bytes.fromhex(signature["signature"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin"]
    done = subprocess.run(
        [*command, "-in", str(tmp_path / "message"), "-sigfile", str(tmp_path / "raw")], capture_output=True
    )
    assert done.returncode == 0, done.stderr


# ---- descriptors of other packages

POINT = """
import layerzero as lz, torch
from layerzero import backends
{before}
x, w = torch.ones(2, 8), torch.ones(8)
kernel = lz.which("rms_norm", x, w).kernel_id
reasons = {{c.kernel_id: c.reasons for c in lz.explain("rms_norm", x, w).candidates}}
print(kernel, [str(r) for r in reasons.get("lz_file.norm", [])], list(backends.problems()))
"""


@pytest.fixture
def package(tmp_path):
    """A package whose entry point names a descriptor; its kernel would be the first choice of rms_norm."""
    descriptor = planted_library.descriptor("lz_file")
    (tmp_path / "lz_file").mkdir()
    (tmp_path / "lz_file/__init__.py").write_text(planted_library.WORKS)
    (tmp_path / "lz_file/capabilities.json").write_text(json.dumps(descriptor))
    (tmp_path / "lz-1.dist-info").mkdir()
    (tmp_path / "lz-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: lz\nVersion: 1\n")
    (tmp_path / "lz-1.dist-info/entry_points.txt").write_text(
        "[layerzero.backends]\nfile = lz_file:capabilities.json\n"
    )
    return tmp_path


def policy(folder, key, required="all"):
    (folder / "layerzero.yaml").write_text(
        f"security: {{require_signatures: {required}, trusted_keys: ['{key[1]}']}}\n"
    )


@pytest.mark.parametrize("required", ["none", "plugins"])
def test_a_descriptor_needs_none_by_default(package, key, required):  # proves: security.require_signatures
    policy(package, key, required)
    done = run(POINT.format(before=""), package)
    assert done.stdout == "lz_file.norm [] []\n", done.stdout + done.stderr


def test_a_signed_descriptor_is_used(package, key):  # proves: security.trusted_keys
    policy(package, key)
    sign(package / "lz_file/capabilities.json", key)
    done = run(POINT.format(before=""), package)
    assert done.stdout.startswith("lz_file.norm []"), done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["unsigned", "changed", "untrusted", "later"])
def test_any_other_is_refused_with_the_reason(package, key, fault):
    path = package / "lz_file/capabilities.json"
    if fault != "later":
        policy(package, key if fault != "untrusted" else (key[0], "0" * 64))
    if fault in ("changed", "untrusted"):
        sign(path, key)
    if fault == "changed":
        path.write_text(path.read_text() + "\n")
    before = f"lz.configure(security={{'require_signatures': 'all', 'trusted_keys': ['{key[1]}']}})" * (
        fault == "later"
    )
    done = run(POINT.format(before=before), package)
    kernel, _, said = done.stdout.partition(" ")
    assert kernel != "lz_file.norm" and done.returncode == 0, done.stdout + done.stderr
    assert "POLICY_DENIED: lz_file is not available" in said, said
    fix = {"untrusted": "add this key to security.trusted_keys", "changed": "sign it again"}
    assert fix.get(fault, f"layerzero sign '{path}'") in said


def test_code_cannot_be_signed_and_is_not_imported(package, key):
    policy(package, key)
    (package / "lz-1.dist-info/entry_points.txt").write_text("[layerzero.backends]\ncode = lz_file:describe\n")
    (package / "lz_file/__init__.py").write_text(f"def describe(): return {planted_library.descriptor('lz_file')!r}")
    code = POINT.format(before="") + "import sys\nprint('lz_file' in sys.modules)"
    done = run(code, package)
    assert done.stdout.endswith("False\n") and "an entry point that runs code" in done.stdout, done.stdout + done.stderr


def test_a_descriptor_that_others_can_write_is_refused(package, key):
    path = package / "lz_file/capabilities.json"
    path.chmod(0o666)
    done = run(POINT.format(before=""), package)
    assert not done.stdout.startswith("lz_file") and f"chmod go-w '{path}'" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("text", ["[" * 100000, '{"backend": 1, "backend": 2}', "[]", "{", "\xff"])
def test_a_descriptor_that_is_no_plain_json_is_a_typed_error(tmp_path, text):
    from layerzero.backends import signatures

    (tmp_path / "capabilities.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(lz.ConfigError):
        signatures.read(tmp_path / "capabilities.json")


# ---- plugins

GOOD = sorted(ROOT.glob("build/*/plugins/libplugin_good.so"))
PLUGIN = """
import layerzero as lz, sys
from layerzero import _layerzero
try:
    _layerzero.load_plugin(sys.argv[1], sys.argv[2])
    print("loaded")
except lz.LayerZeroError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not GOOD, reason="needs the test plugin: build engine_test")
@pytest.mark.parametrize("fault", ["none", "library", "descriptor", "both", "swapped"])
def test_a_plugin_needs_two_signatures(tmp_path, key, fault):
    library, rules = tmp_path / "plugin.so", tmp_path / "rules.json"
    shutil.copy(GOOD[0], library)
    shutil.copy(ROOT / "examples/plugin/capabilities.json", rules)
    for path in (library, rules):
        sign(path, key)
    if fault in ("library", "both"):
        library.write_bytes(library.read_bytes() + b"\0")
    if fault in ("descriptor", "both"):
        (tmp_path / "rules.json.sig").unlink()
    if fault == "swapped":
        shutil.copy(tmp_path / "rules.json.sig", tmp_path / "plugin.so.sig")
    policy(tmp_path, key, "plugins")
    code = PLUGIN.replace("sys.argv[1]", repr(str(library))).replace("sys.argv[2]", repr(str(rules)))
    done = run(code, tmp_path)
    wanted = "loaded\n" if fault == "none" else "UntrustedFileError "
    assert done.stdout.startswith(wanted), done.stdout + done.stderr


@pytest.mark.skipif(not GOOD, reason="needs the test plugin: build engine_test")
def test_a_broken_policy_loads_no_plugin(tmp_path):
    (tmp_path / "layerzero.yaml").write_text("security: {require_signature: all}\n")
    code = PLUGIN.replace("sys.argv[1]", repr(str(GOOD[0]))).replace(
        "sys.argv[2]", repr(str(ROOT / "examples/plugin/capabilities.json"))
    )
    done = run(code, tmp_path)
    assert done.stdout.startswith("ConfigError layerzero.yaml:1"), done.stdout + done.stderr


# ---- C libraries


LIBRARY = """
import json, layerzero as lz
from layerzero import _layerzero
found = [k for k in json.loads(_layerzero.kernels(None, False)) if k["source"] == "openblas"]
print(found[0]["detail"], open("/proc/self/maps").read().count("planted.so") > 0)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("allow_sources: [hwy]", "a library of the policy's allow_sources"),
        ("security: {require_signatures: plugins}", "a signature, in "),
        ("no_such_key: 1", "no_such_key"),
    ],
)
def test_a_named_library_is_not_opened_against_the_policy(tmp_path, text, said):
    library = Path(_layerzero.__file__)
    shutil.copy(library, tmp_path / "planted.so")
    environment = {"LAYERZERO_LIBRARIES": f"openblas={tmp_path}/planted.so"}
    (tmp_path / "layerzero.yaml").write_text("")
    opened = run(LIBRARY, tmp_path, **environment)
    assert "allow_sources" not in opened.stdout and opened.returncode == 0, opened.stdout + opened.stderr
    (tmp_path / "layerzero.yaml").write_text(text + "\n")
    done = run(LIBRARY, tmp_path, **environment)
    assert said in done.stdout and done.stdout.endswith("False\n"), done.stdout + done.stderr


def test_a_named_library_that_others_can_write_is_not_opened(tmp_path):
    shutil.copy(_layerzero.__file__, tmp_path / "planted.so")
    (tmp_path / "planted.so").chmod(0o666)
    done = run(LIBRARY, tmp_path, LAYERZERO_LIBRARIES=f"openblas={tmp_path}/planted.so")
    assert "chmod go-w" in done.stdout and done.stdout.endswith("False\n"), done.stdout + done.stderr


# ---- measured records, and whatever else has a role


@pytest.fixture
def required(key):
    """The process's policy requires signatures of all files by the key."""
    before = {"require_signatures": "none", "trusted_keys": []}
    lz.configure(security={"require_signatures": "all", "trusted_keys": [key[1]]})
    yield key
    lz.configure(security=before)


def exported(folder, name, key=None):
    """A file of records, or a database, as `perfdb export` writes it."""
    sign_it = ["--key", str(key[0])] if key else []
    command = ["perfdb", "export", str(folder / name), "--database", str(folder / "none.sqlite"), *sign_it]
    assert cli.run(command) == 0
    return folder / name


@pytest.mark.parametrize("command", ["import", "merge"])
@pytest.mark.parametrize("name", ["a.records.json", "a.sqlite"])
@pytest.mark.parametrize("fault", ["none", "unsigned", "changed", "another file's"])
def test_records_of_other_machines_need_a_signature(tmp_path, required, capsys, command, name, fault):
    file = exported(tmp_path, name, None if fault == "unsigned" else required)
    if fault == "changed":
        file.write_bytes(file.read_bytes() + b"\n")
    if fault == "another file's":
        other = tmp_path / "other"
        other.write_text("x")
        sign(other, required)
        shutil.copy(f"{other}.sig", f"{file}.sig")
    code = cli.run(["perfdb", command, str(file), "--database", str(tmp_path / "mine.sqlite")])
    said = capsys.readouterr()
    assert code == (0 if fault == "none" else 1), said.err
    if fault != "none":
        assert "a.s" in said.err or "a.r" in said.err
        assert "layerzero sign" in said.err or "that was signed" in said.err


@pytest.mark.parametrize("required_of", ["none", "plugins"])
def test_records_need_none_by_default(tmp_path, key, required_of):
    lz.configure(security={"require_signatures": required_of, "trusted_keys": [key[1]]})
    try:
        file = exported(tmp_path, "a.records.json")
        assert cli.run(["perfdb", "import", str(file), "--database", str(tmp_path / "mine.sqlite")]) == 0
    finally:
        lz.configure(security={"require_signatures": "none", "trusted_keys": []})


def test_what_was_checked_is_what_is_read(tmp_path, required):
    """A reader that needs a path gets a copy of the bytes that were checked."""
    file = exported(tmp_path, "a.sqlite", required)
    content = file.read_bytes()
    with signing.checked(file, "records") as copy:
        file.write_bytes(b"changed meanwhile")
        assert copy != file and copy.read_bytes() == content and copy.stat().st_mode & 0o077 in (0, 0o44)
        assert copy.parent.stat().st_mode & 0o077 == 0
    assert not copy.exists()


def test_roles_decide_what_needs_a_signature(tmp_path, required):
    file = tmp_path / "a.table"
    file.write_bytes(b"{}")
    for role in ("plugin", "descriptor", "records", "table"):
        assert signing.is_required(role)
        with pytest.raises(lz.UntrustedFileError, match="layerzero sign"):
            signing.read(file, role)
    signing.sign(file, required[0])
    assert all(signing.read(file, role) == b"{}" for role in ("plugin", "descriptor", "records", "table"))
    assert signing.verify(file) == required[1]
    lz.configure(security={"require_signatures": "plugins"})
    (tmp_path / "a.table.sig").unlink()
    assert signing.read(file, "table") == b"{}"
    with pytest.raises(lz.UntrustedFileError):
        signing.read(file, "plugin")
    with pytest.raises(ValueError, match="table"):
        _layerzero.check_signed(str(file), b"{}", "policy")


def test_signatures_are_checked_by_the_command_line(tmp_path, required, capsys):
    file = exported(tmp_path, "a.records.json", required)
    capsys.readouterr()
    assert cli.run(["sign", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file}: signed by {required[1]}\n"
    file.write_text("{}")
    assert cli.run(["sign", str(file), "--check"]) == 1
    assert "that was signed" in capsys.readouterr().err


def test_a_database_that_others_can_write_is_not_used(tmp_path):
    file = exported(tmp_path, "a.sqlite")
    file.chmod(0o666)
    with pytest.raises(lz.UntrustedFileError, match="chmod go-w"):
        perf_records.read_database(file)
    with pytest.raises(lz.UntrustedFileError, match="chmod go-w"):
        perf_records.write_database([], file)
    file.chmod(0o600)
    assert perf_records.read_database(file) == []
