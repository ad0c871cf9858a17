"""The published JSON schemas accept every shipped file and refuse broken ones."""

import copy
import json
from pathlib import Path

import pytest

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).resolve().parents[2]
DEVICES = sorted((ROOT / "devices").glob("*.json"))
DESCRIPTORS = sorted((ROOT / "python/layerzero/backends").glob("*/capabilities.json"))


def load(path):
    return json.loads(path.read_text())


def validator(name):
    schema = load(ROOT / "schemas" / f"{name}.schema.json")
    cls = jsonschema.validators.validator_for(schema)
    cls.check_schema(schema)
    return cls(schema)


def places(name, document):
    return ["/".join(map(str, e.absolute_path)) + " " + e.message for e in validator(name).iter_errors(document)]


@pytest.mark.parametrize("path", DEVICES, ids=lambda p: p.stem)
def test_device_files_follow_the_schema(path):
    assert places("device", load(path)) == []


@pytest.mark.parametrize("path", DESCRIPTORS, ids=lambda p: p.parent.name)
def test_descriptors_follow_the_schema(path):
    assert places("capabilities", load(path)) == []


def test_there_is_something_to_check():
    assert len(DEVICES) >= 13
    assert {p.parent.name for p in DESCRIPTORS} >= {"torch", "zentorch"}


@pytest.mark.parametrize(
    "name, key, value",
    [
        ("h100", "sm", "90"),
        ("h100", "l3_bytes", 1),
        ("zen5", "sm", 90),
        ("h100", "generation", "fermi"),
        ("h100", "warp_size", 32),
    ],
)
def test_device_schema_refuses(name, key, value):
    document = load(ROOT / "devices" / f"{name}.json")
    document["facts"][key] = value
    assert places("device", document)


def test_device_schema_wants_every_fact():
    original = load(ROOT / "devices/h100.json")
    for key in original["facts"]:
        document = copy.deepcopy(original)
        del document["facts"][key]
        assert places("device", document), key


KERNEL = {"kernel_id": "x.y", "dtypes": ["float32"], "requires_layouts": ["any"]}


def descriptor(**kernel):
    return {
        "schema_version": "1.0",
        "backend": "x",
        "backend_version": "1",
        "platform": "cpu",
        "ops": {"norm.rms": [KERNEL | kernel]},
    }


def test_the_smallest_descriptor_is_valid():
    assert places("capabilities", descriptor()) == []
    by_other_name = descriptor(supported_dtypes=["float32"], fuses_ops=[], jit=None, supports_prepack=False)
    del by_other_name["ops"]["norm.rms"][0]["dtypes"]
    assert places("capabilities", by_other_name) == []


@pytest.mark.parametrize(
    "kernel",
    [
        {"dtypes": []},
        {"dtypes": ["float33"]},
        {"requires_layouts": []},
        {"kernel_id": "nodots"},
        {"min_sm": "80"},
        {"min_sm": [8, 10]},
        {"priority": 101},
        {"speed": 1},
        {"constraints": [{"field": "hidden", "relation": "in", "operand": 1}]},
        {"constraints": [{"field": "hidden", "relation": "~", "operand": 1}]},
        {"requires": [{"import": "x", "min_version": "1"}]},
        {"grid_layout": {"y": "batch"}},
        {"requires_aligned": {"query": 12}},
        {"requires_layouts": ["SBHD"]},
        {"supported_attn_mask_types": ["int"]},
        {"supports_kv_cache_layouts": ["BSHD"]},
        {"fuses_ops": ["posenc.rope"]},
        {"jit": {"seconds": 3}},
        {"supports_prepack": True},
    ],
    ids=json.dumps,
)
def test_capabilities_schema_refuses(kernel):
    assert places("capabilities", descriptor(**kernel))


def test_capabilities_schema_refuses_other_versions():
    assert places("capabilities", descriptor() | {"schema_version": "2.0"})


# ---- measured records: the engine's reader and the schema agree

RECORDS = ROOT / "tests/perfdb/records"
INVALID = load(RECORDS / "invalid.json")
BEYOND_THE_SCHEMA = {"p95", "twice"}  # relations between values


def test_valid_records_pass_schema_and_engine(tmp_path):
    from layerzero import perf_records as records

    assert places("records", load(RECORDS / "valid.json")) == []
    rows = records.read(RECORDS / "valid.json")
    assert [row["kernel_id"] for row in rows] == ["hwy.norm.rms", "torch.sdpa.flash"]
    records.write(tmp_path / "again.json", rows)
    assert records.read(tmp_path / "again.json") == rows
    assert places("records", load(tmp_path / "again.json")) == []
    assert list(rows[0]) == list(load(ROOT / "schemas/records.schema.json")["$defs"]["record"]["properties"])


@pytest.mark.parametrize("name", sorted(INVALID))
def test_invalid_records_fail_schema_and_engine(tmp_path, name):
    import layerzero as lz
    from layerzero import perf_records as records

    document = INVALID[name]["document"]
    assert bool(places("records", document)) == (name not in BEYOND_THE_SCHEMA)
    (tmp_path / "file.json").write_text(json.dumps(document))
    with pytest.raises(lz.ConfigError) as caught:
        records.read(tmp_path / "file.json")
    assert INVALID[name]["message"] in str(caught.value)


def test_records_are_checked_before_they_are_written(tmp_path):
    import layerzero as lz
    from layerzero import perf_records as records

    with pytest.raises(lz.ConfigError, match="median_us"):
        records.write(tmp_path / "file.json", INVALID["zero"]["document"]["records"])
    assert not (tmp_path / "file.json").exists()
