"""Which versions of `kernels` the installed Transformers accepts, and the warning where another one is installed."""

import sys
import warnings

import pytest

pytest.importorskip("torch")

import layerzero as lz  # noqa: E402


def test_the_versions_that_transformers_accepts_are_read_from_its_files(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    from layerzero.integrations.hf_kernels import mapping as module
    from transformers.dependency_versions_table import deps

    wanted = sys.modules[module.__module__].wanted_by_transformers
    assert f"kernels{wanted()}" == deps["kernels"]
    monkeypatch.delitem(sys.modules, "transformers")
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert wanted() is None  # without the file
    (tmp_path / "transformers/dependency_versions_table.py").write_text('deps = {"kernels": "kernels>=7,<8"}')
    assert wanted() == ">=7,<8"


def test_a_version_that_transformers_does_not_accept_is_a_warning(monkeypatch):
    from layerzero.integrations.hf_kernels import mapping as module

    source = sys.modules[module.__module__]
    versions = {"kernels": "0.17.2", "transformers": "5.24.0"}
    monkeypatch.setattr(source.optional, "version_of", versions.get)
    monkeypatch.setattr(source, "wanted_by_transformers", lambda: ">=0.18.2,<0.19")
    wanted = r"mapping\(\): wanted kernels>=0.18.2,<0.19, which is what Transformers 5.24.0 accepts, got kernels 0.17.2"
    with pytest.warns(
        lz.errors.LayerZeroCompatibilityWarning, match=wanted + '.*; pip install "kernels>=0.18.2,<0.19", or'
    ):
        source.warn_if_transformers_refuses("mapping()", "call kernelize()")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernels, range_ in (("0.18.3", ">=0.18.2,<0.19"), ("0.17.2", None), (None, ">=0.18.2,<0.19")):
            versions["kernels"] = kernels
            monkeypatch.setattr(source, "wanted_by_transformers", lambda range_=range_: range_)
            source.warn_if_transformers_refuses("mapping()", "call kernelize()")
