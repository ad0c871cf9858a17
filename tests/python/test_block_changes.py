"""What is done to a model whose layers run as one program: its own result, whatever it was, or a program that follows."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from block_families import BY_NAME, TOLERANCE, build, error, holder_of, ids_of, plan_of  # noqa: E402
from torch import nn  # noqa: E402

# One with each kind of part: caps and four norms, packed products, heads that alternate, transposed weights, norms behind,
# experts beside a shared one, sinks, latents.
NAMES = ["gemma2", "phi3", "gpt_neox", "gpt2", "bert", "qwen2_moe", "gpt_oss", "deepseek_v3"]


@pytest.fixture(params=NAMES)
def pair(request):
    """(kernelized, as it was), both run before."""
    name = request.param
    model = BY_NAME["bert"].build() if name == "bert" else build(name)
    own = copy.deepcopy(model)
    assert lz.compile(model).block
    alike(model, own)
    return model, own


def outputs(model, **further):
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, :3] = 0
    with torch.inference_mode():
        return model(input_ids=ids_of() % 128, attention_mask=mask, **further)


def alike(model, own):
    actual, expected = outputs(model)[0], outputs(own)[0]
    assert error(actual[1], expected[1]) <= TOLERANCE
    return expected


def layers_of(model):
    return next(part for part in holder_of(model).children() if isinstance(part, nn.ModuleList))


def in_both(pair, path_of_change):
    """Applies a change to the same module of both models, named by its path in the first layer."""
    model, own = pair
    names = {id(module): name for name, module in model.named_modules()}
    first = names[id(layers_of(model)[0])]
    return [path_of_change(each.get_submodule(first)) for each in pair]


def parts_of(pair):
    return [name for name, _ in layers_of(pair[0])[0].named_modules()]


def test_weights_that_are_replaced(pair):
    before = alike(*pair)[1]
    for name, _ in list(layers_of(pair[0])[0].named_parameters()):
        path, _, last = name.rpartition(".")

        def change(layer, path=path, last=last):
            module = layer.get_submodule(path)
            setattr(module, last, nn.Parameter(getattr(module, last).detach().flip(0) * 1.5))

        in_both(pair, change)
        after = alike(*pair)[1]
        assert not torch.equal(after, before), f"{name} changed nothing"
        before = after
    assert not plan_of(pair[0]).why_aside, "the program of the new weights runs"


def test_weights_that_are_written(pair):
    """By `copy_`, as loading does, and by `.data`, as adapters are merged."""
    before = alike(*pair)
    with torch.no_grad():
        in_both(pair, lambda layer: [p.mul_(1.3) for p in layer.parameters()])
        between = alike(*pair)
        in_both(pair, lambda layer: [p.data.add_(0.05) for p in layer.parameters()])
    after = alike(*pair)
    assert error(between[1], before[1]) > 10 * TOLERANCE and error(after[1], between[1]) > 10 * TOLERANCE
    assert not plan_of(pair[0]).why_aside


def test_hooks_on_any_part(pair):
    def flips(module, arguments, result):
        return result.flip(-1) if isinstance(result, torch.Tensor) else (result[0].flip(-1), *result[1:])

    calm, heard = alike(*pair), 0
    for name in parts_of(pair):
        handles = in_both(pair, lambda layer, name=name: layer.get_submodule(name).register_forward_hook(flips))
        heard += not torch.equal(alike(*pair)[1], calm[1])
        for handle in handles:
            handle.remove()
        assert error(alike(*pair)[1], calm[1]) <= TOLERANCE
    assert heard >= len(parts_of(pair)) - 2  # a dropout that nobody calls
    assert set(plan_of(pair[0]).why_aside) == {"a module has hooks"}


def test_constants(pair):
    def change(layer):
        changed = 0
        for module in layer.modules():
            for name, value in list(vars(module).items()):
                if name in ("eps", "variance_epsilon", "scaling", "attn_logit_softcapping") and value is not None:
                    setattr(module, name, value * 3)
                    changed += 1
        assert changed

    before = alike(*pair)
    in_both(pair, change)
    assert error(alike(*pair)[1], before[1]) > 10 * TOLERANCE
    assert "an attribute of a module was changed after kernelize" in plan_of(pair[0]).why_aside


def test_an_activation_that_is_replaced(pair):
    def change(layer):
        for module in layer.modules():
            for name, part in list(module._modules.items()):
                if not list(part.parameters()) and not isinstance(part, nn.Dropout):
                    setattr(module, name, nn.Tanh())
                    changed.append(name)

    changed, before = [], alike(*pair)
    in_both(pair, change)
    if not changed:
        pytest.skip("its activation is no module")
    assert error(alike(*pair)[1], before[1]) > 10 * TOLERANCE


def test_layers_that_are_exchanged(pair):
    model, own = pair
    path = next(name for name, module in model.named_modules() if module is layers_of(model))
    for each in pair:
        layers = each.get_submodule(path)
        layers._modules["0"], layers._modules["1"] = layers._modules["1"], layers._modules["0"]
    alike(*pair)
    assert "a module was replaced after kernelize" in plan_of(model).why_aside


def test_a_part_in_training_mode(pair):
    def drops(layer):
        for module in layer.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.9
        layer.train()

    in_both(pair, drops)
    results = []
    for model in pair:
        torch.manual_seed(0)
        results.append(outputs(model)[0][1])
    assert error(*results) <= TOLERANCE


def test_states_that_are_asked_for(pair):
    expected = outputs(pair[1], output_hidden_states=True).hidden_states
    for _ in range(2):
        actual = outputs(pair[0], output_hidden_states=True).hidden_states
        assert len(actual) == len(expected)
        assert all(error(mine[1], own[1]) <= TOLERANCE for mine, own in zip(actual, expected, strict=True))
    alike(*pair)  # with the hooks that Transformers leaves behind
    assert plan_of(pair[0]).why_aside == {"attentions or hidden states are asked for": 2}


def test_gradients(pair):
    sums = []
    for model in pair:
        model(input_ids=ids_of() % 128)[0].float().square().sum().backward()
        sums.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert sums[0].keys() == sums[1].keys()
    for name, gradient in sums[1].items():
        assert torch.allclose(sums[0][name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())), name


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_layers_that_are_left_out(name):
    """As drafts by the first layers do: the model's code calls some of them, and the program is not for that."""
    model, own = build(name), build(name)
    lz.kernelize(model)
    results = []
    for each in (model, own):
        each.config.num_hidden_layers = 2
        with torch.inference_mode():
            results.append(each(input_ids=ids_of()).logits)
    assert error(*results) <= TOLERANCE
    assert plan_of(model).why_aside == {"its layers were not all called": 1}


def test_copies_have_programs_of_their_own(pair):
    model, own = pair
    twin = copy.deepcopy(model)
    with torch.no_grad():
        in_both((model, model), lambda layer: [p.mul_(1.1) for p in layer.parameters()])
    alike(twin, own)
    assert holder_of(twin) is not holder_of(model) and not plan_of(twin).why_aside


def test_other_threads_have_calls_of_their_own(pair):
    expected = outputs(pair[1])[0]
    with ThreadPoolExecutor(4) as pool:
        for rows in pool.map(lambda _: outputs(pair[0])[0], range(24)):
            assert error(rows[1], expected[1]) <= TOLERANCE
