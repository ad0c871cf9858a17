"""The sampling kernels against their definitions: torch's rows on hard calls, every kernel's distribution by a grid of
numbers, and its far tail."""

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402
from conformance_calls import call_door, engine_accepts, problems  # noqa: E402
from operation_cases import as_tuple  # noqa: E402

KERNELS = ["hwy", "ref", "torch", "torch.ref"]
SAMPLERS = {
    "topk": [{"k": 1}, {"k": 20}, {"k": 3000}, {"row_k": "i64[6]{1,2,30,400,5000,1000000}"}],
    "topp": [{"p": 0.0}, {"p": 0.5}, {"p": 0.95}, {"p": 1.0}, {"row_p": "f32[6]{0,0.1,0.5,0.9,0.999,1}"}],
    "minp": [{"min_p": 0.0}, {"min_p": 0.05}, {"min_p": 1.0}, {"row_min_p": "f64[6]{0,0.001,0.01,0.1,0.5,1}"}],
    "topk_topp": [
        {"k": 40, "p": 0.8},
        {"k": 5000, "p": 0.5},
        {"k": 9, "p": 0.0},
        {"k": 9, "p": 1.0},
        {"row_k": "i32[6]{1,2,30,400,5000,6}", "p": 0.9},
        {"k": 30, "row_p": "f32[6]{0,0.1,0.5,0.9,0.999,1}"},
    ],
}
CALLS = [(name, filters) for name, all_filters in SAMPLERS.items() for filters in all_filters]
LOGITS = [
    "f32[6,5003]~uniform(-8,8)",
    "f32[6,4096]~int(-3,3)",  # ties at every threshold
    "bf16[6,3000]~uniform(-8,8)",
    "f16[6,768]~uniform(-1,1)",
    "f64[6,700]~uniform(-8,8)",
    "f32[6,64]{}".format("{" + ",".join(["inf,-inf,1,2,-inf,0,inf,3e38"] * 48) + "}"),
    "f32[6,2]{3e38,-3e38,1e-40,0,-3e38,-3e38,-inf,0,inf,inf,nan,1}",
    "f32[6,3001]~uniform(-8,8)@nan",
    "f32[6,257]~uniform(-8,8)@transposed",
    "f32[6,1]~uniform(-8,8)",
]
TEMPERATURES = ["", "temperature=0.2", "temperature=1e38", "temperature=1e-42",
                "row_temperature=f32[6]{0.1,0.5,1,2,1e20,3e38}"]  # fmt: skip


@pytest.mark.parametrize(("name", "filters"), CALLS, ids=str)
def test_torchs_rows_give_the_tokens_of_the_definition(name, filters):
    given = " ".join(f"{key}={value}" for key, value in filters.items())
    failures = []
    for i, logits in enumerate(LOGITS):
        for j, temperature in enumerate(TEMPERATURES):
            line = f"logits={logits} {given} {temperature} seed={i} offset={j}"
            assert engine_accepts(f"sample_{name}", line)
            result = call_door(f"sample_{name}", line, kernel=f"torch.sampling.{name}")
            failures += [f"{line[:80]}\n    {text}" for text in problems(f"sample_{name}", line, result)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("b", "n", "vocab"), [(50, 3, 7), (20, 1, 1000), (5, 0, 300), (3, 2, 5003)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_torchs_speculation_gives_the_tokens_of_the_definition(b, n, vocab, dtype):
    for seed in range(5):
        line = (
            f"draft_probs={dtype}[{b},{n},{vocab}]~probs draft_token_ids=i32[{b},{n}]~int(0,{vocab + vocab // 8}) "
            f"target_probs={dtype}[{b},{n + 1},{vocab}]~probs seed={seed}"
        )
        result = call_door("speculative_sample", line, kernel="torch.sampling.speculative")
        assert not problems("speculative_sample", line, result)


def kept(name, filters, weights):
    """The weights of what a call keeps, in float64."""
    order = weights.argsort(descending=True, stable=True)
    ordered = weights[order]
    keep = torch.ones(len(weights), dtype=torch.bool)
    keep[filters.get("k", len(weights)) :] = False
    ordered = ordered * keep
    before = ordered.cumsum(0) - ordered
    keep &= (before < filters.get("p", 2.0) * ordered.sum()) & (ordered >= filters.get("min_p", 0.0))
    return torch.zeros_like(weights).scatter(0, order, ordered * keep)


GRID = [("topk", {"k": 3000}), ("topk", {"k": 90}), ("topp", {"p": 0.97}), ("topp", {"p": 1.0}), ("minp", {"min_p": 5e-3}),
        ("minp", {"min_p": 0.0}), ("topk_topp", {"k": 250, "p": 0.99})]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "filters"), GRID, ids=str)
def test_a_grid_of_numbers_gives_the_kept_distribution(name, filters, kernel):
    """Of N numbers at equal distances each token gets N times its probability, to one; and so does a tail of tokens that
    are rare each (7 % together), which no test of single tokens sees."""
    count, vocab, tail = 4000, 320, 250
    torch.manual_seed(1)
    weights = torch.rand(vocab, dtype=torch.float64)
    weights[-tail:] *= 0.07 / weights[-tail:].sum()
    weights[:-tail] *= 0.93 / weights[:-tail].sum()
    logits = weights.log().float().expand(count, vocab)
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    token = getattr(lz, f"sample_{name}")(logits, **filters, uniform=uniform, kernel=f"{kernel}.sampling.{name}")
    counts = token.bincount(minlength=vocab)
    wanted = logits[0].double().exp()
    wanted = kept(name, filters, wanted / wanted.max())
    wanted = wanted / wanted.sum() * count
    assert ((counts - wanted).abs() <= 1.3).all()
    assert (counts[-tail:].sum() - wanted[-tail:].sum()).abs() <= 1.3
    assert not counts[wanted == 0].any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_seeded_draws_follow_the_distribution(kernel):
    """Chi-square over the frequent tokens and the pooled tail, of draws by Philox."""
    count, vocab = 50_000, 40
    weights = torch.cat([torch.tensor([0.5, 0.2, 0.15, 0.08]), torch.full((vocab - 4,), 0.07 / (vocab - 4))]).double()
    logits = weights.log().float().expand(count, vocab)
    token = lz.sample_topp(logits, 1.0, seed=11, offset=5, kernel=f"{kernel}.sampling.topp")
    counts = token.bincount(minlength=vocab).double()
    counts, wanted = (torch.cat([t[:4], t[4:].sum()[None]]) for t in (counts, weights * count))
    assert ((counts - wanted) ** 2 / wanted).sum() < 23.5  # of 4 degrees of freedom: one in 10,000
    assert float(token[:-1].double().sub(token.double().mean()) @ token[1:].double().sub(token.double().mean())) < 4 * (
        count**0.5 * float(token.double().var())
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_speculation_by_a_grid_of_numbers_follows_the_target(kernel):
    """A draft from one distribution, accepted or replaced, is a token of the target's."""
    steps, vocab = 120, 6
    torch.manual_seed(2)
    draft, target = torch.rand(2, vocab, dtype=torch.float64).add(0.05).float()
    draft, target = draft / draft.sum(), target / target.sum()
    grid = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    accept, pick = torch.meshgrid(grid, grid, indexing="ij")
    uniform = torch.zeros(steps**2, 2, 2, dtype=torch.float64)
    uniform[:, 0, 0], uniform[:, 0, 1], uniform[:, 1, 1] = accept.flatten(), pick.flatten(), pick.flatten()
    found = torch.zeros(vocab, dtype=torch.float64)
    for t in range(vocab):
        ids = torch.full((steps**2, 1), t)
        probs = draft.expand(steps**2, 1, vocab).contiguous(), target.expand(steps**2, 2, vocab).contiguous()
        out, _ = lz.speculative_sample(
            probs[0], ids, probs[1], uniform=uniform, kernel=f"{kernel}.sampling.speculative"
        )
        found += float(draft[t]) * out[:, 0].bincount(minlength=vocab) / steps**2
    assert (found - target.double()).abs().max() < 0.02


@pytest.mark.parametrize("name", SAMPLERS)
def test_numbers_of_rows_that_a_call_would_refuse_are_refused(name):
    sample, logits = getattr(lz, f"sample_{name}"), torch.zeros(2, 8)
    rest = {"topk": {"k": 3}, "topp": {"p": 0.5}, "minp": {"min_p": 0.5}, "topk_topp": {"k": 3, "p": 0.5}}[name]
    bad = {"k": torch.tensor([1, 0]), "p": torch.tensor([0.5, 1.5]), "min_p": torch.tensor([float("nan"), 0.5])}
    for key in rest:
        given = {k: v for k, v in rest.items() if k != key} | {f"row_{key}": bad[key]}
        for kernel in KERNELS:
            with pytest.raises(lz.KernelExecutionError, match=f"sample_{name}"):
                sample(logits, **given, seed=0, kernel=f"{kernel}.sampling.{name}")
    for kernel in KERNELS:
        wanted = "numbers above 0" if "torch" in kernel else "valid values in its tensors"
        with pytest.raises(lz.KernelExecutionError, match=f"sample_{name}.*wanted {wanted}"):
            row = torch.tensor([1.0, 0.0])
            sample(logits, **rest, row_temperature=row, seed=0, kernel=f"{kernel}.sampling.{name}")


def test_softmax_with_a_temperature_for_each_row():
    for line in (
        "logits=f32[5,1000]~uniform(-40,40) row_temperature=f32[5]{0.01,0.5,1,2,100}",
        "logits=bf16[5,100]~uniform(-8,8) row_temperature=f64[5]{1e-300,1e-42,1e20,1e38,1e300}",
        "logits=f32[2,2]{3e38,-3e38,3e38,3e38} row_temperature=f32[2]{3e38,1e-40}",
        "logits=f64[3,50]~uniform(-8,8) row_temperature=f32[3]{0.1,1,2}",
        "logits=f32[3,0] row_temperature=f32[3]{0.1,1,2}",
        "logits=f32[7] row_temperature=f32[]{0.3}",
    ):
        result = call_door("softmax", line, kernel="torch.softmax")
        assert not problems("softmax", line, result), line
    with pytest.raises(lz.KernelExecutionError, match="row_temperature"):
        lz.softmax(torch.zeros(2, 3), row_temperature=torch.tensor([1.0, 0.0]), kernel="torch.softmax")
    assert as_tuple(lz.softmax(torch.zeros(2, 3), row_temperature=torch.ones(2), kernel="torch.softmax"))
