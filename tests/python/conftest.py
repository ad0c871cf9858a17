"""What holds for every test of Python."""

import functools
import gc
import importlib
import json
import os
import sys
import tempfile

import pytest

# Tests neither read nor write what LayerZero keeps for the user. Workers of pytest-xdist inherit the folder.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="lz-tests-", ignore_cleanup_errors=True)
    os.environ["LAYERZERO_CACHE_DIR"] = _cache.name


@pytest.fixture(autouse=True)
def own_kernels():
    """Kernels that a test registers go with it."""
    before = registered()
    yield
    for adapter in registered() - before:
        sys.modules["layerzero.backends"].remove_function(adapter)


def registered():
    backends = sys.modules.get("layerzero.backends")
    return backends.functions() if backends else frozenset()


@pytest.fixture(autouse=True)
def policy_in_force():
    """Keys that a test sets for the process go with it."""
    before = policy_values()
    yield
    for name, value in policy_values().items():
        if before and value != before[name]:
            *sections, key = name.split(".")
            keys = functools.reduce(
                lambda inner, section: {section: inner}, reversed(sections), {key: undo(before[name], value)}
            )
            sys.modules["layerzero"].configure(**keys)


def undo(before, value):
    """The value that makes `before` of `value`: entries of dictionaries are merged, so new ones are set to null."""
    return dict.fromkeys(value) | before if isinstance(value, dict) else before


def policy_values():
    binding = sys.modules.get("layerzero._layerzero")
    return {name: key["value"] for name, key in json.loads(binding.policy_text())["keys"].items()} if binding else {}


@pytest.fixture
def run(capfd):
    """Runs a command of `layerzero`: its exit code, and what it wrote to standard output and error."""

    def call(*arguments):
        code = importlib.import_module("layerzero.cli").run(list(arguments))
        text = capfd.readouterr()
        return code, text.out, text.err

    return call


def pytest_collection_finish():
    """What was imported so far stays: collections of garbage need not walk it before each of thousands of tests."""
    gc.collect()
    gc.freeze()
