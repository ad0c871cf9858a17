"""Draws one recorded layer and what was matched: docs/guide/how-a-model-is-understood.svg, from a small Llama.

python scripts/draw_recognised.py           writes the picture
python scripts/draw_recognised.py --check   fails if the one that is there is another
"""

import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/guide/how-a-model-is-understood.svg"
COLOURS = {
    "input_layernorm": "#d7e8f7",
    "self_attn": "#dff0d8",
    "post_attention_layernorm": "#d7e8f7",
    "mlp": "#fdebd0",
}
_ROW, _LEFT, _RIGHT, _WIDTH = 20, 20, 470, 940


def recorded() -> tuple[Any, Any]:
    """(the graph of the first layer of a small Llama, the Layer that it is)."""
    import torch
    from layerzero.integrations.transformers import probe
    from layerzero.integrations.transformers.recognise import layer, observe
    from layerzero.models.families import FAMILIES

    model = next(family for family in FAMILIES if family.name == "llama").build()
    with torch.inference_mode():
        graph, *_ = observe.record(model, model.model.layers, lambda: probe.observed_call(model), "layerzero")
        return graph, layer.read(graph).layer


def calls_of(graph: Any) -> list[tuple[str, str]]:
    """(module, line) of each call that leads to the result, in turn."""
    needed, todo = set[int](), [graph.result]
    while todo:
        node = todo.pop()
        if id(node) not in needed:
            needed.add(id(node))
            todo += node.inputs
    made = [n for n in graph.nodes if id(n) in needed and n.op not in ("parameter", "input", "constant", "alias")]
    return [(node.module, f"{node.op} {'x'.join(map(str, node.value.shape))}") for node in made]


def matched(layer: Any) -> dict[str, list[str]]:
    """Part of the layer -> what its record says."""
    own, mlp, rope = layer.attention, layer.mlp, layer.attention.rope
    heads = [f"{part}: {h.heads} heads of {h.size}, {h.linear}" for part, h in zip(("query", "key", "value"), (own.query, own.key, own.value), strict=True)]  # fmt: skip

    def norm(norms: Any) -> list[str]:
        return [f"Norm: {norms.before.operation}, eps {norms.before.eps:g}"]

    return {
        "input_layernorm": norm(layer.attention_norms),
        "self_attn": ["Attention", *heads, f"rope: {rope.rotary_dim} columns, interleaved {rope.interleaved}",
                      f"causal {own.causal}, scale {own.scale:g}, out: {own.out}"],
        "post_attention_layernorm": norm(layer.mlp_norms),
        "mlp": [f"Mlp: {mlp.operation}", f"gate: {mlp.gate.linear}", f"up: {mlp.up.linear}", f"out: {mlp.out}"],
    }  # fmt: skip


def drawn() -> str:
    graph, layer = recorded()
    calls, lines = calls_of(graph), []
    height = _ROW * (len(calls) + 3)

    def text(x: int, y: int, said: str, style: str = "") -> None:
        lines.append(f'<text x="{x}" y="{y}"{style}>{escape(said)}</text>')

    def box(x: int, y: int, width: int, rows: int, colour: str) -> None:
        size = f'width="{width}" height="{rows * _ROW - 3}"'
        lines.append(f'<rect x="{x}" y="{y - 14}" {size} rx="3" fill="{colour}"/>')

    text(_LEFT, 18, "recorded: calls of torch in the layer", ' font-weight="bold"')
    text(_RIGHT, 18, "matched: the Layer", ' font-weight="bold"')
    first: dict[str, int] = {}
    for index, (module, said) in enumerate(calls):
        y, part = 2 * _ROW + index * _ROW, module.partition(".")[0]
        first.setdefault(part, y)
        box(_LEFT, y, 400, 1, COLOURS.get(part, "#eeeeee"))
        text(_LEFT + 6, y, f"{said}    {module or 'the stream: rows + part'}")
    for part, facts in matched(layer).items():
        y = first[part]
        box(_RIGHT, y, 440, len(facts), COLOURS[part])
        lines.append(f'<path d="M{_LEFT + 400} {y - 5} H{_RIGHT}" stroke="#666" fill="none"/>')
        for index, each in enumerate(facts):
            text(_RIGHT + 6, y + index * _ROW, each)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="monospace" font-size="12">'
    return "\n".join([opening, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def main() -> int:
    picture = drawn()
    if "--check" in sys.argv:
        return int(PICTURE.read_text(encoding="utf-8") != picture)
    PICTURE.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
