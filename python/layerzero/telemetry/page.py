"""The HTML page of `lz.report`: one file without scripts, fonts or images from elsewhere."""

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from layerzero.inspection.metrics import quantile
from layerzero.telemetry.reasons import why_chosen, why_lost

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: .6em 0; } td, th { text-align: left; padding: .2em .8em .2em 0;
vertical-align: top; border-bottom: 1px solid #eee; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font-size: .93em; } summary { cursor: pointer; padding: .25em 0; } .chosen { font-weight: 600; color: #14632c; }
.refused { color: #777; } .note { color: #555; } svg text { font: 11px system-ui, sans-serif; fill: #444; }
.interval { stroke: #222; fill: none; }
"""


def page(data: dict[str, Any]) -> str:
    """Returns the page of what a report recorded (see report.to_dict())."""
    decisions = data["decisions"]
    kernels = {d["report"]["kernel_id"] for d in decisions}
    head = (
        f"LayerZero {escape(data['version'])} ({escape(data['build'])}), Python {escape(data['python'])}, "
        f"{escape(', '.join(data['machine']))}; {escape(data['time'])}, {data['seconds']:.1f} s"
    )
    body = [
        "<h1>Decisions of a run</h1>",
        f'<p class="note">{head}</p>',
        f"<p>{len(decisions)} decisions, {len(kernels)} kernels, {sum(r['runs'] for r in data['runs'])} runs of kernels.</p>",
        _gains(data),
        _runs(data["runs"]),
        "<h2>Decisions</h2>",
        *(_decision(decision) for decision in decisions),
    ]
    if data["left_out"]:
        body.append(f'<p class="note">{data["left_out"]} more decisions were not kept.</p>')
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>LayerZero: decisions of a run</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(filter(None, body)) + "\n</body></html>\n"
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in columns)
    lines = ("<tr>" + "".join(row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _cell(text: Any, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(str(text))}</td>' if kind else f"<td>{escape(str(text))}</td>"


def _gains(data: dict[str, Any]) -> str:
    """What to install or change: libraries that lost only because they are missing, with the measured gain if known."""
    wanted: dict[str, dict[str, Any]] = {}
    for decision in data["decisions"]:
        for c in decision["report"]["candidates"]:
            codes = {r["code"] for r in c["reasons"]}
            if codes and codes <= {"NOT_INSTALLED", "BACKEND_IMPORT_FAILED"}:
                entry = wanted.setdefault(c["source"], {"calls": 0, "operations": set(), "detail": c["reasons"][0]})
                entry["calls"] += decision["times"]
                entry["operations"].add(decision["report"]["operation"])
    references = sorted(
        {
            d["report"]["operation"]
            for d in data["decisions"]
            if any(c["reference"] and c["kernel_id"] == d["report"]["kernel_id"] for c in d["report"]["candidates"])
        }
    )
    lines = []
    for source, entry in sorted(wanted.items()):
        gain = data["gains"].get(source) or {}
        factor = (
            f"{gain['speedup']:.2f} times as fast, of {gain['faster']} of {gain['calls']} measured calls"
            if gain.get("speedup")
            else "not measured"
        )
        lines.append(
            [
                _cell(source),
                _cell(", ".join(sorted(entry["operations"]))),
                _cell(entry["detail"]["message"]),
                _cell(factor),
            ]
        )
    text = "<h2>What would help</h2>"
    if lines:
        text += _table(("library", "would take", "why it did not", "gain"), lines)
    else:
        text += "<p>No library that is missing would have taken a call of this run.</p>"
    if references:
        text += f"<p>Only a reference served: {escape(', '.join(references))}.</p>"
    return text


def _runs(runs: list[dict[str, Any]]) -> str:
    total = sum(run["seconds"] for run in runs) or 1.0

    def us(run: dict[str, Any], fraction: float) -> str:
        found = quantile(run["buckets"], fraction)
        return "" if found is None else f"{found * 1e6:.3g}"

    rows = (
        [
            _cell(run["operation"]),
            _cell(run["kernel_id"]),
            _cell(run["runs"], "n"),
            _cell(run["hits"], "n"),
            _cell(run["fallbacks"], "n"),
            _cell(run["failures"], "n"),
            _cell(f"{run['seconds'] / total:.0%}", "n"),
            _cell(us(run, 0.5), "n"),
            _cell(us(run, 0.99), "n"),
            f"<td>{histogram(run['buckets'])}</td>",
        ]
        for run in runs
    )
    columns = ("operation", "kernel", "runs", "hits", "fallbacks", "failed", "time", "p50 us", "p99 us", "distribution")
    return (
        "<h2>Kernels that ran</h2>"
        + _table(columns, rows)
        + (
            '<p class="note">Host time; on a GPU that of the launch. A bar is twice as long a time as the one before.</p>'
        )
    )


def histogram(buckets: dict[str, int]) -> str:
    """Returns the distribution of times as SVG: a bar for each power of two of nanoseconds."""
    counts = {int(math.log2(int(bound))): count for bound, count in buckets.items() if count}
    if not counts:
        return ""
    first, last, most = min(counts), max(counts), max(counts.values())
    bars = []
    for place, power in enumerate(range(first, last + 1)):
        height = 28 * counts.get(power, 0) / most
        title = f"below {_time(2**power)}: {counts.get(power, 0)}"
        bars.append(
            f'<rect x="{place * 10}" y="{30 - height:.1f}" width="8" height="{height:.1f}" fill="#3b6ea5"><title>{title}</title></rect>'
        )
    width = max(120, (last - first + 1) * 10)
    labels = (
        f'<text x="0" y="42">{_time(2**first)}</text><text x="{width}" y="42" text-anchor="end">{_time(2**last)}</text>'
    )
    return (
        f'<svg width="{width}" height="46" role="img" aria-label="distribution of times">{"".join(bars)}{labels}</svg>'
    )


def _time(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def _decision(decision: dict[str, Any]) -> str:
    report = decision["report"]
    chosen = report["kernel_id"] or "no kernel"
    rows = []
    for c in sorted(
        report["candidates"], key=lambda c: (c["kernel_id"] != report["kernel_id"], not c["admissible"], -c["score"])
    ):
        is_chosen = c["kernel_id"] == report["kernel_id"]
        kind = "chosen" if is_chosen else "" if c["admissible"] else "refused"
        why = f"chosen: {why_chosen(report)}" if is_chosen else why_lost(c, report)
        score = f"{c['score']:g}" if c["admissible"] else "refused"
        rows.append([_cell(c["kernel_id"], kind), _cell(score, "n"), _cell(why, kind)])
    options = ", ".join(f"{key}={value}" for key, value in report["options"].items())
    times = f", {decision['times']} times" if decision["times"] > 1 else ""
    title = (
        f'<span class="chosen">{escape(chosen)}</span> for {escape(report["operation"])} of '
        f"<code>{escape(decision['inputs'])}</code> on {escape(decision['device'])}{escape(f' ({options})' if options else '')}{times}"
    )
    return f"<details><summary>{title}</summary>{_table(('kernel', 'score', 'why'), rows)}{measured(report)}</details>"


def measured(report: dict[str, Any]) -> str:
    """Returns the measured times of the candidates as bars, each with the interval of its median as a line."""
    rows = {c["kernel_id"]: c for c in report["candidates"] if c.get("measured_us")}
    if not rows:
        return ""
    most = max(c["measured_interval_us"][1] for c in rows.values())
    bars = []
    for place, (kernel, c) in enumerate(sorted(rows.items(), key=lambda item: item[1]["measured_us"])):
        y, us, (low, high) = place * 18, c["measured_us"], c["measured_interval_us"]
        color = "#14632c" if kernel == report["kernel_id"] else "#9bb8d3"
        left, right = 200 + 300 * low / most, 200 + 300 * high / most
        bars.append(
            f'<rect x="200" y="{y}" width="{300 * us / most:.1f}" height="13" fill="{color}"/>'
            f'<path class="interval" d="M{left:.1f} {y + 6.5}H{right:.1f}M{left:.1f} {y + 3}v7M{right:.1f} {y + 3}v7"/>'
            f'<text x="195" y="{y + 11}" text-anchor="end">{escape(kernel)}</text>'
            f'<text x="{right + 5:.1f}" y="{y + 11}">{us:.4g} us ({low:.4g} to {high:.4g})</text>'
        )
    return (
        '<p class="note">Measured medians with their 95 % intervals, which are wider for calls between measured ones.</p>'
        f'<svg width="700" height="{18 * len(rows)}" role="img" aria-label="measured times">{"".join(bars)}</svg>'
    )
