"""The staged package follows the sources and the libraries of its preset."""

import stage_package


def test_links_modules_libraries_and_references(tmp_path, monkeypatch):
    monkeypatch.setattr(stage_package, "ROOT", tmp_path)
    for name in (
        "python/layerzero/__init__.py",
        "python/layerzero/cli/main.py",
        "build/release/lib/_layerzero.abi3.so",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "ops").mkdir()
    package = stage_package.stage("release") / "layerzero"
    assert package == tmp_path / "build/release/python/layerzero"
    assert {p.name for p in package.iterdir()} == {"__init__.py", "cli", "_layerzero.abi3.so", "_reference"}
    assert (package / "cli/main.py").exists()

    (tmp_path / "python/layerzero/__init__.py").write_text("edited")
    (tmp_path / "python/layerzero/new.py").write_text("")
    (tmp_path / "build/release/lib/_layerzero.abi3.so").unlink()
    stage_package.stage("release")
    assert (package / "__init__.py").read_text() == "edited"
    assert (package / "new.py").exists()
    assert not (package / "_layerzero.abi3.so").is_symlink()
