"""Generation: the same ids as Transformers' own loop, chat turns over one cache, sampling, and the command."""

import io
import json
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

import layerzero as lz  # noqa: E402
import small_model  # noqa: E402
from layerzero.cli import run  # noqa: E402
from layerzero.errors import InvalidRequestError  # noqa: E402
from layerzero.models import Sampling, Session  # noqa: E402
from layerzero.models.families import FAMILIES  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small_model.save(tmp_path_factory.mktemp("model"))


@pytest.fixture
def session(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lz.kernelize(model)
    return Session(model, transformers.AutoTokenizer.from_pretrained(folder))


def own(session, prompt, tokens):
    """Transformers' greedy ids, without what follows a stop."""
    with torch.inference_mode():
        out = session.model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)
    rows = out[0, len(prompt) :].tolist()
    return rows[: rows.index(2)] if 2 in rows else rows


def test_greedy_ids_are_transformers(session):
    prompt = session.chat_ids([{"role": "user", "content": "hello"}])
    result = session.generate([prompt], 24)[0]
    assert result.token_ids == own(session, prompt, 24)
    assert result.text == session.text(result.token_ids)


def test_batch_of_unequal_prompts(session):
    prompts = [session.chat_ids([{"role": "user", "content": text}]) for text in ("hi", "hello there general", "a b")]
    alone = [session.generate([prompt], 12)[0].token_ids for prompt in prompts]
    together = [result.token_ids for result in session.generate(prompts, 12)]
    assert together == alone


def test_turns_reuse_the_cache(session):
    messages = [{"role": "user", "content": "hello"}]
    for question in ("there", "general", "x"):
        prompt = session.chat_ids(messages)
        result = session.generate([prompt], 8)[0]
        assert result.token_ids == own(session, prompt, 8)
        messages += [{"role": "assistant", "content": result.text}, {"role": "user", "content": question}]
    # Another conversation shares no prefix, or a part of one.
    for text in ("zzz", "hellothere"):
        prompt = session.chat_ids([{"role": "user", "content": text}])
        assert session.generate([prompt], 8)[0].token_ids == own(session, prompt, 8)


@pytest.mark.parametrize("kernelized", [False, True])
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "gpt_oss", "qwen3_next", "llama"])
def test_a_prompt_that_leaves_the_cached_text(folder, name, kernelized):
    """Behind their windows, and where a state is kept, caches of Transformers cannot go back."""
    family = next(family for family in FAMILIES if family.name == name)
    first = list(range(5, 30))
    prompts = [first, [*first[:3], *range(60, 80)], [*first[:20], *range(40, 50)]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = family.build()
    expected = [Session(model, tokenizer).generate([prompt], 6)[0].token_ids for prompt in prompts]
    if kernelized:
        lz.kernelize(model)
    session = Session(model, tokenizer)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert [session.generate([prompt], 6)[0].token_ids for prompt in prompts] == expected
    told = [str(warning.message) for warning in seen if "cannot go back" in str(warning.message)]
    assert len(told) == (name == "qwen3_next" or (name != "llama" and not kernelized))


def test_stops(session):
    prompt = session.chat_ids([{"role": "user", "content": "hello"}])
    ids = session.generate([prompt], 12)[0].token_ids
    session.stops = {ids[4]}
    result = session.generate([prompt], 12)[0]
    assert result.stopped
    assert result.token_ids == ids[: ids.index(ids[4])]


def test_stream_adds_up_to_the_text(session):
    prompt = session.chat_ids([{"role": "user", "content": "☕☕"}])
    pieces = []
    result = session.generate([prompt], 100, on_text=pieces.append)[0]
    assert len(pieces) > 1
    assert "".join(pieces).replace("\ufffd", "") == result.text.replace("\ufffd", "")


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.8}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 9, "top_p": 0.7}, {"min_p": 0.1, "temperature": 2}],
    ids=str,
)
def test_seeds_repeat(session, options):
    prompt = session.chat_ids([{"role": "user", "content": "hello"}])
    runs = [session.generate([prompt], 16, Sampling.of(**options, seed=seed))[0].token_ids for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_temperature_zero_and_top_k_one_are_greedy(session):
    prompt = session.chat_ids([{"role": "user", "content": "hello"}])
    expected = session.generate([prompt], 8)[0].token_ids
    for options in ({"temperature": 0}, {"top_k": 1}):
        assert session.generate([prompt], 8, Sampling.of(**options))[0].token_ids == expected


def test_refusals(session):
    with pytest.raises(InvalidRequestError, match="min_p"):
        Sampling.of(min_p=0.1, top_k=3)
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        session.generate([[5]], 0)
    with pytest.raises(InvalidRequestError, match="at least one token"):
        session.generate([[]], 3)


def test_command_json_with_and_without_layerzero(folder, capsys):
    arguments = [
        "generate",
        "--model",
        str(folder),
        "--prompt",
        "hello",
        "--dtype",
        "f32",
        "--max-tokens",
        "8",
        "--json",
    ]
    texts = []
    for extra in ([], ["--no-layerzero"]):
        assert run([*arguments, *extra]) == 0
        report = json.loads(capsys.readouterr().out)
        (answer,) = report["results"]
        assert report["layerzero"] is (not extra)
        assert set(answer["timings"]) == {"first_token_s", "prefill_tokens_per_s", "decode_tokens_per_s"}
        texts.append((answer["text"], answer["token_ids"]))
    assert texts[0] == texts[1]


def test_command_prompts_file_and_conversation(folder, tmp_path, capsys, monkeypatch):
    arguments = ["generate", "--model", str(folder), "--dtype", "f32", "--max-tokens", "6"]
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n\nthere general\n")
    assert run([*arguments, "--prompts-file", str(prompts), "--json"]) == 0
    assert [r["prompt"] for r in json.loads(capsys.readouterr().out)["results"]] == ["hello", "there general"]
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nthere\n"))
    assert run(arguments) == 0
    assert capsys.readouterr().out.strip()


def test_command_usage_errors(folder, tmp_path, capsys):
    assert run(["generate", "--model", str(tmp_path / "none"), "--prompt", "a"]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert run(["generate", "--prompt", "a", "--prompts-file", "b"]) == 2


@pytest.mark.parametrize("kind", ["bf16", "int8"])
def test_the_command_runs_on_blocks_alone(folder, capsys, kind):
    arguments = [
        "generate",
        "--model",
        str(folder),
        "--dtype",
        "f32",
        "--prompt",
        "hello",
        "--max-tokens",
        "4",
        "--json",
    ]
    assert run([*arguments, "--weights", kind, "--release"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["stopped"] or len(result["token_ids"]) == 4
    assert run([*arguments, "--release"]) == 2 and "--release" in capsys.readouterr().out
    assert run([*arguments, "--release", "--no-layerzero"]) == 2 and "--no-layerzero" in capsys.readouterr().out
