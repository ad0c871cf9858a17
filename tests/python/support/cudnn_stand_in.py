"""cudnn-frontend's graph of attention in float64, with the arguments and conventions of release 1.32."""

import types

import torch
from flash_stand_ins import one, with_table
from library_signatures import stand_in

PLANS = []  # graphs that were built


class Tensor:
    def __init__(self, dim=None, stride=None, data_type=None):
        self.dim, self.stride, self.data_type, self.output = dim, stride, data_type, False
        self.ragged_offset = None

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def set_(value):
            setattr(self, name.removeprefix("set_"), value)
            return self

        return set_


def check(tensor, value):
    assert tuple(value.shape) == tuple(tensor.dim) and tuple(value.stride()) == tuple(tensor.stride), (
        value,
        tensor.dim,
    )
    assert value.dtype == tensor.data_type


class Graph:
    """A graph of one sdpa node. Whatever was not declared before execute() is refused."""

    def __init__(self, handle, io_data_type, intermediate_data_type, compute_data_type):
        assert handle == "handle" and intermediate_data_type == compute_data_type == torch.float32
        self.steps, self.node = [], None

    def tensor(self, *given, **named):
        a = stand_in("cudnn:pygraph.tensor", dict)(*given, **named)
        return Tensor(a["dim"], a["stride"], a["data_type"])

    def sdpa(self, *given, **named):
        assert self.node is None
        self.node = a = stand_in("cudnn:pygraph.sdpa", dict)(*given, **named)
        assert a["diagonal_alignment"] == "bottom right" and a["generate_stats"] in (True, False)
        assert a["attn_scale"] > 0, "the largest logit of a row is found before it is scaled"
        assert a["diagonal_band_left_bound"] is None or a["diagonal_band_left_bound"] >= 1
        self.result, self.stats = Tensor(), Tensor()
        return self.result, self.stats if a["generate_stats"] else None

    def __getattr__(self, name):
        assert name in (
            "validate",
            "build_operation_graph",
            "create_execution_plans",
            "check_support",
            "build_plans",
        ), name
        return lambda *given: self.steps.append(name)

    def get_workspace_size(self):
        assert self.steps[-1] == "build_plans" and len(self.steps) == 5
        PLANS.append(self)
        return 16

    def execute(self, values, workspace, handle):
        assert workspace.numel() == 16 and workspace.dtype == torch.uint8 and handle == "handle"
        for tensor, value in values.items():
            if tensor.ragged_offset is None:
                check(tensor, value)
        a = self.node
        q, k, v = (values[a[name]] for name in ("q", "k", "v"))
        left, right = a["diagonal_band_left_bound"], a["diagonal_band_right_bound"]
        how = (
            a["attn_scale"],
            False,
            (-1 if left is None else left - 1, -1 if right is None else right),
            0.0,
            None,
            None,
        )
        if a["q"].ragged_offset is not None:
            self.packed(values, how)
            return
        for i, rows in enumerate(q):
            if a["paged_attention_k_table"] is None:
                keys, weights = k[i].transpose(0, 1), v[i].transpose(0, 1)
            else:
                assert a["use_padding_mask"] and int(values[a["seq_len_q"]][i]) == q.shape[2]
                used = int(values[a["seq_len_kv"]][i])
                assert 1 <= used <= a["paged_attention_max_seq_len_kv"]
                tables = (values[a[f"paged_attention_{n}_table"]][i, 0, :, 0] for n in "kv")
                keys, weights = (with_table(c.transpose(1, 2), t, used) for c, t in zip((k, v), tables, strict=True))
            output, lse = one(rows.transpose(0, 1), keys, weights, *how, -torch.inf)
            values[self.result][i] = output.transpose(0, 1)
            if a["generate_stats"]:
                values[self.stats][i, :, :, 0] = lse

    def packed(self, values, how):
        """Sequences by offsets in elements; rows that see no key are undefined, here NaN."""
        a = self.node

        def part(tensor, i, length):
            start, (_, heads, longest, size) = int(values[tensor.ragged_offset][i]), tensor.dim
            assert 0 <= length <= longest and values[tensor.ragged_offset].shape == (
                len(values[a["seq_len_q"]]) + 1,
                1,
                1,
                1,
            )
            flat = values[tensor].view(-1)
            assert tuple(tensor.stride[1:]) == (size, heads * size, 1) and start + length * heads * size <= flat.numel()
            return flat[start : start + length * heads * size].view(length, heads, size)

        for i, (rows, used) in enumerate(zip(values[a["seq_len_q"]], values[a["seq_len_kv"]], strict=True)):
            rows, used = int(rows), int(used)
            assert used >= 1
            output, lse = one(part(a["q"], i, rows), part(a["k"], i, used), part(a["v"], i, used), *how, torch.nan)
            hidden = lse.isnan().transpose(0, 1)
            part(self.result, i, rows).copy_(output.masked_fill(hidden[..., None], torch.nan))
            if a["generate_stats"]:
                self.stats.dim[3] = 1
                part(self.stats, i, rows).copy_(lse.transpose(0, 1)[..., None])


def module():
    found = types.ModuleType("cudnn")
    found.data_type = types.SimpleNamespace(
        HALF=torch.float16, BFLOAT16=torch.bfloat16, FLOAT=torch.float32, DOUBLE=torch.float64, INT32=torch.int32
    )
    found.diagonal_alignment = types.SimpleNamespace(BOTTOM_RIGHT="bottom right", TOP_LEFT="top left")
    found.heur_mode = types.SimpleNamespace(A="a", FALLBACK="fallback")
    found.pygraph, found.create_handle = Graph, lambda: "handle"
    return found
