"""Locks of deployments, differences between them, and joint plans: what changed, what it costs, what is cheaper together."""

import copy
import json

import pytest

pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from layerzero.tables import joint  # noqa: E402
from layerzero.tables.lock import change_text, compare, lock_of, read_lock, write_lock  # noqa: E402


def entry(name, kernel, us=10.0, **others):
    return {"class": name, "kernel_id": kernel, "us": us, "rival": None, "rival_us": None, "count": 1} | others


def table_of(*entries, **about):
    document = {
        "schema_version": "1.0",
        "model_id": "m",
        "hardware_signature": "cpu_x",
        "capabilities_hash": "0" * 64,
        "versions": {"layerzero": "1", "torch": "2.13"},
        "policy_hash": "0" * 16,
        "policy": {},
        "tp_size": 1,
        "shape_buckets": {"s": [1]},
        "choices": sorted(entries, key=lambda one: one["class"]),
        "plans": [{"bucket": {"s": 1}, "ops": [], "jit_artifacts": []}],
        "fallback": {"mode": "runtime_select"},
    }
    return lz.DispatchTable(document | about)


def differences(before, after):
    found = compare(lock_of(before), lock_of(after))
    return {key: value for key, value in found.items() if value and key != "calls"}


BEFORE = table_of(entry("norm.rms rows=1", "a", 10.0, rival="b", rival_us=12.0), entry("mlp.linear rows=1", "c", None))


def test_equal_installations_do_not_differ():
    assert differences(BEFORE, copy.deepcopy(BEFORE)) == {}


def test_a_changed_choice_has_both_times_and_the_cost():
    after = table_of(entry("norm.rms rows=1", "b", 8.0, rival="a", rival_us=11.0), entry("mlp.linear rows=1", "d", 5.0))
    linear, norm = differences(BEFORE, after)["choices"]
    assert (norm["kernel_before"], norm["kernel_after"], norm["us_before"], norm["us_after"]) == ("a", "b", 10.0, 8.0)
    assert norm["cost"] == pytest.approx(0.8) and norm["kernel_before_us_now"] == 11.0
    assert change_text(norm) == "norm.rms rows=1: a 10.0 us -> b 8.0 us (0.80x); a would take 11.0 us now"
    assert linear["cost"] is None and "c unmeasured -> d 5.0 us" in change_text(linear)


@pytest.mark.parametrize(
    "about",
    [
        {"versions": {"layerzero": "1", "torch": "2.14"}},
        {"versions": {"layerzero": "1", "torch": "2.13", "driver": 580065}},
        {"hardware_signature": "cpu_y"},
        {"policy": {"strict_mode": True}},
        {"policy_hash": "1" * 16},
        {"numerics": "default"},
        {"tp_invariant": True},
        {"shape_buckets": {"s": [2]}},
        {"capabilities_hash": "1" * 64},
    ],
    ids=lambda about: next(iter(about)),
)
def test_versions_and_settings_are_compared(about):
    after = table_of(*BEFORE.document["choices"], **about)
    (one,) = differences(BEFORE, after)["versions"]
    assert one["before"] != one["after"]


def test_calls_in_one_only():
    after = table_of(entry("norm.rms rows=1", "a"), entry("softmax", "e"))
    found = differences(BEFORE, after)
    assert found["only_before"] == ["mlp.linear rows=1"] and found["only_after"] == ["softmax"]


def test_a_lock_diffs_line_by_line(tmp_path):
    lock = lock_of(BEFORE, {"operations": ["a call"]})
    write_lock(tmp_path / "layerzero.lock", lock)
    assert read_lock(tmp_path / "layerzero.lock") == json.loads(json.dumps(lock))
    first = (tmp_path / "layerzero.lock").read_text().splitlines()
    other = copy.deepcopy(lock)
    other["choices"][0]["kernel_id"] = "z"
    other["versions"]["torch"] = "9"
    write_lock(tmp_path / "layerzero.lock", other)
    second = (tmp_path / "layerzero.lock").read_text().splitlines()
    assert len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=True)) == 2


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"lock_version": "9", "choices": []}', '{"lock_version": "1.0", "choices": [1]}', "no"]
)
def test_what_is_no_lock_is_refused(tmp_path, text):
    (tmp_path / "layerzero.lock").write_text(text)
    with pytest.raises(lz.ConfigError):
        read_lock(tmp_path / "layerzero.lock")


# ---- joint plans


def report(operation, us, kernel="k", transforms=0.0, options=None, **key):
    candidates = [{"kernel_id": kernel} | ({"measured_us": us} if us is not None else {})]
    plan = {"transforms": [{}] if transforms else [], "transform_cost_total": 5 + 90 * transforms if transforms else 0}
    key = {"dtype": "float32"} | {name: str(value) for name, value in key.items()}
    return {
        "operation": operation,
        "kernel_id": kernel,
        "candidates": candidates,
        "plan": plan,
        "options": options or {},
        "key": key,
    }


ADD = report("elementwise.binary", 4.0)
NORM = report("norm.rms", 6.0, hidden=64, **{"...": 8}, options={"weight": "given"})


@pytest.mark.parametrize(("us", "decision"), [(9.0, "join"), (10.0, "apart"), (11.0, "apart")])
def test_neighbors_join_where_that_costs_less(us, decision):
    asked = []

    def ask(text):
        asked.append(text)
        return report("norm.rms.residual", us)

    (one,) = joint.divide([ADD, NORM], ask, 1)
    assert (one["decision"], one["us_apart"], one["us_joined"]) == (decision, 10.0, us)
    assert asked == ["fused_add_rms_norm --input float32[8,64] --residual float32[8,64] --weight float32[64]"]


def test_conversions_count():
    """A copy of half of the bytes doubles a call, so that the joined operation no longer pays."""
    (one,) = joint.divide([ADD, NORM], lambda text: report("norm.rms.residual", 9.0, transforms=0.5), 1)
    assert one["decision"] == "apart" and one["us_joined"] == pytest.approx(18.0)


def test_what_was_not_measured_stays_apart_with_the_reason():
    for parts, joined in (([ADD, report("norm.rms", None, hidden=64, **{"...": 8})], 1.0), ([ADD, NORM], None)):
        (one,) = joint.divide(parts, lambda text, us=joined: report("norm.rms.residual", us), 1)
        assert one["decision"] == "refused" and "no measured time of norm.rms" in one["reason"]


def test_what_no_operation_does_is_refused_with_the_reason():
    (one,) = joint.divide([report("posenc.rope", 1.0), report("attention.causal", 2.0)], None, 1)
    assert one["decision"] == "refused" and "no operation does both" in one["text"]
    sub = report("elementwise.binary", 4.0, options={"function": "sub"})
    assert "no addition" in joint.divide([sub, NORM], None, 1)[0]["reason"]


def test_packing_is_spread_over_calls():
    """30 us to pack: worth it for 1000 calls that are 2 us shorter, not for 10."""
    linear = report("mlp.linear", 20.0, rows=1, n=128, k=64)

    def ask(text):
        return report("x", 15.0 if text.startswith("linear --input") else 18.0)

    for calls, decision in ((1000, "join"), (10, "apart")):
        (one,) = joint.divide([linear], ask, calls)
        assert one["decision"] == decision and one["us_joined"] == pytest.approx(18 + 30 / calls)


def test_a_chain_takes_the_cheapest_division():
    """A feed-forward block as one operation (30 us) against packed products (20 + 5 + 4)."""
    chain = [
        report("mlp.linear", 20.0, rows=4, n=128, k=64),
        report("activation.silu_and_mul", 5.0),
        report("mlp.linear", 10.0, rows=4, n=64, k=64),
    ]
    costs = {"fused_mlp": 30.0, "linear_panels": 50.0, "linear": 1.0}
    found = joint.divide(chain, lambda text: report("x", costs[text.split()[0]]), 1000)
    assert [one["joined"] for one in found if one["decision"] == "join"] == ["mlp.fused"]
    costs["linear_panels"] = 4.0
    found = joint.divide(chain, lambda text: report("x", costs[text.split()[0]]), 1000)
    assert [one["joined"] for one in found if one["decision"] == "join"] == ["mlp.linear.panels"] * 2


def test_a_block_has_a_signature():
    assert joint.signature_of([ADD, NORM]) == joint.signature_of([copy.deepcopy(ADD), copy.deepcopy(NORM)])
    assert joint.signature_of([ADD, NORM]) != joint.signature_of([NORM, ADD])
    other = copy.deepcopy(NORM)
    other["key"]["hidden"] = "65"
    assert joint.signature_of([ADD, NORM]) != joint.signature_of([ADD, other])


# ---- plan_mode in programs


def program_of_add_and_norm(**policy):
    torch = pytest.importorskip("torch")
    from layerzero.program import ProgramBuilder, Rows

    with lz.policy(**policy):
        make = ProgramBuilder()
        first, second, weight = make.input(), make.input(), make.weight(torch.full((64,), 2.0))
        one, other, total = (make.rows(64, "float32") for _ in range(3))
        for source, target in ((first, one), (second, other)):
            make.add("cast", [Rows(target, (64,))], input=source, dtype="float32")
        make.add("elementwise", [Rows(total, (64,))], input=Rows(one, (64,)), other=Rows(other, (64,)), function="add")
        out = make.output(64, "float32")
        make.add("rms_norm", [Rows(out, (64,))], input=Rows(total, (64,)), weight=weight, eps=1e-6)
        return make.build()


@pytest.mark.parametrize("pays", [True, False])
def test_plan_mode_joins_steps_of_a_program(monkeypatch, pays):  # proves: plan_mode
    torch = pytest.importorskip("torch")
    from layerzero.tables import joint_steps

    monkeypatch.setattr(joint_steps, "_pays", lambda dtype, hidden, weighted: pays)
    apart, joined = program_of_add_and_norm(), program_of_add_and_norm(plan_mode=True)
    assert apart.operations[-2:] == ["elementwise", "rms_norm"]
    assert joined.operations[2:] == (["fused_add_rms_norm"] if pays else ["elementwise", "rms_norm"])
    inputs = (torch.randn(1, 3, 64), torch.randn(1, 3, 64))
    results = [torch.empty(1, 3, 64) for _ in range(2)]
    for program, result in zip((apart, joined), results, strict=True):
        program.run(inputs, (result,))
    torch.testing.assert_close(results[0], results[1])
    total = inputs[0] + inputs[1]
    torch.testing.assert_close(results[1], torch.nn.functional.rms_norm(total, (64,), torch.full((64,), 2.0), 1e-6))


def test_steps_that_would_be_written_while_read_stay_apart():
    from layerzero.tables.joint_steps import _joined

    def rows(value, width=64, past=False):
        return value, 0, (width,), past, 0, False

    def steps(one=0, other=1, total=2, source=2, normed=3, **scalars):
        add = (_Named("elementwise"), [rows(one), rows(other)], scalars, [rows(total)])
        return add, (_Named("rms_norm"), [rows(source), 9], {"eps": 1e-6}, [rows(normed), None])

    assert _joined(*steps())[1] == [rows(0), rows(1), 9]
    assert _joined(*steps(total=1, source=1))[3] == [rows(3), rows(1)]
    assert _joined(*steps(total=0, source=0))[1] == [rows(1), rows(0), 9]  # the sum replaces the second operand
    for wrong in ({"source": 7}, {"normed": 1}, {"normed": 2}, {"function": "sub"}, {"scale": 2.0}):
        assert _joined(*steps(**wrong)) is None
    assert _joined(*steps(one=2, other=2)) is None


class _Named:
    def __init__(self, name):
        self.__name__ = name
