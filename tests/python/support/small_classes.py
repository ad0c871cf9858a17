"""Every model class of Transformers, built small with random weights: its configuration is shrunk by the names of its numbers.

`build` gives a model and the inputs that it runs on, or raises NotBuilt with the reason of each attempt.
"""

import importlib
import inspect
import re
from pathlib import Path

import torch

VOCABULARY, LENGTH = 150, 12
_MOST_PARAMETERS = 100_000_000


class NotBuilt(Exception):
    """Why no small model of a class could be made and run."""


class NoSuchAttention(NotBuilt):
    """The class does not support that attention."""


def classes():
    """Name -> class of each model that Transformers exports."""
    import transformers
    from transformers import PreTrainedModel

    found = {}
    for path in sorted(Path(transformers.__path__[0], "models").glob("*/modeling_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        except ImportError:  # a package of its own is missing
            continue
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and issubclass(kind, PreTrainedModel) and kind.__module__ == module.__name__
            if own and not name.endswith("PreTrainedModel") and hasattr(transformers, name):
                found[name] = kind
    return found


# ---- configurations

_LAYERS = (
    r"^(num_(\w+_)?layers|n_layers?|(\w+_)?layers|(\w+_)?depth|num_(hidden_)?blocks|num_layers_per_block|num_stacks)$"
)
_HEADS = r"^(num_(\w+_)?heads|n_heads?|(\w+_)?attention_heads|(\w+_)?num_heads|num_(\w+_)?attention_heads)$"
_WIDTHS = (
    r"^((\w+_)?hidden_size|(\w+_)?d_model|n_embd|dim|(\w+_)?embed_dim|(\w+_)?hidden_dim|embedding_size|(\w+_)?embed_size"
    r"|(\w+_)?projection_dim|word_embed_proj_dim|emb_dim|(\w+_)?hidden_channels|model_dim|(\w+_)?embedding_dim)$"
)
_INNER = (
    r"^((\w+_)?intermediate_size|(\w+_)?ffn_dim|d_ff|n_inner|(\w+_)?feedforward_dim|hidden_dim|(\w+_)?ffn_hidden_size)$"
)
_EXPERTS = r"^(num_(\w+_)?experts|n_routed_experts|moe_num_experts|num_local_experts)$"
_NO_LAYERS = {
    "num_feat_extract_layers",
    "num_feature_levels",
    "num_hidden_layers_to_keep",
    "output_layers",
    "deepstack_layers",
}


def _shrunk(name, value, level):
    """What a number of a configuration becomes, None where it stays."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if re.search(r"vocab_size|n_vocab|vocabulary_size", name) and value > VOCABULARY:
        return VOCABULARY
    if re.search(r"token_(id|index)$|_token_idx$", name):
        return None if value < VOCABULARY else 100 + sum(map(ord, name)) % 45
    if re.match(_LAYERS, name) and name not in _NO_LAYERS:
        return min(value, 2) if "num_layers_per_block" not in name else None
    if re.match(_EXPERTS, name):
        return min(value, 4)
    if re.search(r"num_experts_per_tok|moe_k$|moe_topk|num_selected_experts|top_k_experts", name):
        return min(value, 2)
    if name in ("n_group", "topk_group", "num_expert_group"):
        return 1
    if re.search(r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_source_positions", name):
        return min(value, 512) if level < 3 else None
    if level == 3:
        return None
    if level == 2:  # the same proportions
        wide = re.match(_WIDTHS, name) or re.match(_INNER, name) or re.search(r"moe_intermediate_size|_lora_rank", name)
        return max(value // 8, 8) if wide and value >= 64 else None
    width, heads = (64, 4) if level == 0 else (128, 8)
    if name == "upsample_groups":
        return min(value, width)
    if re.search(r"key_value_heads|kv_heads|query_groups", name):
        return None if value == 1 else heads // 2
    if re.match(_HEADS, name):
        return min(value, heads) if value > 1 else None
    if re.search(r"moe_\w*intermediate_size|shared_expert\w*size", name):
        return width // 2
    if re.match(_INNER, name) and name != "hidden_dim":
        return min(value, 2 * width) or None
    if re.match(_WIDTHS, name):
        return min(value, width) or None
    if name in ("head_dim", "d_kv", "attention_head_dim", "v_head_dim", "qk_nope_head_dim", "kv_channels"):
        return width // heads
    if name in ("qk_rope_head_dim",):
        return width // heads
    if re.search(r"(q|kv)_lora_rank", name):
        return 32
    return None


def _overrides(config, level, source):
    from transformers import PreTrainedConfig

    found = {}
    for name, value in vars(config).items():
        if name.startswith("_") or name in ("dtype", "transformers_version"):
            continue
        if isinstance(value, PreTrainedConfig):
            inner = _further(value, _overrides(value, level, source), source)
            found[name] = inner | ({"model_type": value.model_type} if value.model_type else {})
            continue
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            if name in ("depths", "num_block", "block_repeats") or re.search(
                r"^(encoder_|decoder_)?depths$|^layers$", name
            ):
                found[name] = type(value)([1] * len(value)) if level < 3 else [min(v, 2) for v in value]
            elif "token_id" in name:
                found[name] = [v if v < VOCABULARY else 140 for v in value]
            continue
        small = _shrunk(name, value, level)
        if small is not None and small != value:
            found[name] = small
    return found


# What the names do not say, by the type of the configuration.
_SPECIAL = {
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "xmod": {"default_language": "en_XX"},
    "perceiver": {"qk_channels": 64, "v_channels": 64},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 3},
}
_SPECIAL |= dict.fromkeys(
    ("mamba2", "falcon_mamba2"), {"num_heads": 8, "head_dim": 16, "hidden_size": 64, "n_groups": 1}
)
_SERIES = {"prediction_length": 8, "context_length": 16, "lags_sequence": [1, 2, 3], "num_time_features": 2}
_SPECIAL |= dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _SERIES)
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_SPECIAL |= {"dots1": _ROUTED | {"n_shared_experts": 1}, "lfm2_moe": {"layer_types": ["conv", "full_attention"]}}
_SPECIAL |= dict.fromkeys(
    ("chameleon", "emu3"), {"vocabulary_map": {"<image>": 8, "<|image token|>": 8, "IMGIMGAZ": 9}}
)
_MIXED = {"mamba_n_heads": 8, "mamba_d_head": 16}
_SPECIAL |= {
    "bamba": _MIXED | {"attn_layer_indices": [1]},
    "granitemoehybrid": _MIXED | {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
}


def _source_of(config):
    """The code of the models of a configuration."""
    return "".join(path.read_text() for path in Path(inspect.getfile(type(config))).parent.glob("modeling_*.py"))


def _further(config, overrides, source):
    """What has to agree with other numbers: sections of a rotation with the size of a head, lists with the number of layers."""
    held = vars(config)

    def now(name):
        return overrides.get(name, held.get(name))

    heads, width = now("num_attention_heads"), now("hidden_size")
    plain = isinstance(width, int) and isinstance(heads, int)
    if now("kv_lora_rank") and now(
        "qk_rope_head_dim"
    ):  # latents: each head has keys of its own, and a part of them turns
        overrides["head_dim"] = now("qk_rope_head_dim")
        overrides["num_key_value_heads"] = heads
    elif "head_dim" in held and held["head_dim"] is None and plain:
        overrides["head_dim"] = width // heads
    if "num_key_value_heads" in held and held["num_key_value_heads"] is None and plain:
        overrides["num_key_value_heads"] = heads
    head = now("head_dim") or (width // heads if plain else None)
    rope = held.get("rope_parameters")
    if isinstance(rope, dict) and head and not any(isinstance(value, dict) for value in rope.values()):
        further = {"rope_theta": rope.get("rope_theta") or 10000.0}
        if "mrope_section" in source or "mrope_section" in rope or "mrope_section" in _source_of(config):
            half = int(head * rope.get("partial_rotary_factor", 1.0)) // 2
            further["mrope_section"] = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
        overrides["rope_parameters"] = rope | further
    _shorten(held, overrides)
    if type(config).__name__ == "DbrxAttentionConfig":
        overrides["rope_theta"] = 10000.0
    return overrides | _SPECIAL.get(config.model_type, {})


def _shorten(held, overrides):
    """Lists with an entry for each layer: as many as it takes to have every kind."""
    kinds = held.get("layer_types")
    if isinstance(kinds, list) and kinds:
        count = max(2, 1 + max(kinds.index(kind) for kind in set(kinds)))
        overrides["layer_types"] = kinds[:count]
        overrides |= {name: count for name in ("num_hidden_layers", "num_layers") if name in held}
        if isinstance(held.get("mlp_layer_types"), list):
            overrides["mlp_layer_types"] = held["mlp_layer_types"][:count]
    if isinstance(held.get("attention_types"), list):
        overrides["attention_types"] = [[["global", "local"], 1]]
    overrides.pop("attention_layers", None)


def _config(kind, level):
    default = kind.config_class()
    source = Path(inspect.getfile(kind)).read_text()
    overrides = _further(default, _overrides(default, level, source), source)
    pad = getattr(default, "pad_token_id", None)
    if pad is None and "vocab_size" in vars(default):
        overrides["pad_token_id"] = 0
    for name in ("decoder_start_token_id",):
        if name in vars(default) and getattr(default, name) is None:
            overrides[name] = 1
    return type(default)(**overrides)


# ---- weights


def randomise(model, seed=0):
    """Weights of such sizes that each part of the model matters to what it gives."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2 or name.endswith("bias"):
                base = 1.0 if parameter.dim() == 1 and "norm" in name.lower() and name.endswith("weight") else None
                parameter.add_(0.1 * noise) if base is None else parameter.copy_(base + 0.1 * noise)
            elif "embed" in name and parameter.dim() == 2:
                parameter.copy_(noise)
            else:
                fan = max(parameter[0].numel(), 1) if parameter.dim() < 4 else parameter[0].numel()
                parameter.copy_(noise * (1.5 / fan**0.5))
        for name, held in model.named_buffers():
            if "correction" in name and held.is_floating_point():
                held.copy_(torch.randn(held.shape, generator=generator) * 0.1)
    return model


# ---- inputs


def _numbers(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(seed=1, length=LENGTH):
    return torch.randint(5, 95, (2, length), generator=torch.Generator().manual_seed(seed))


def _every(config):
    from transformers import PreTrainedConfig

    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PreTrainedConfig):
            yield from _every(value)


def _first(config, *names, default=None):
    for each in _every(config):
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
                return value[0]
            if isinstance(value, int) and not isinstance(value, bool) and value:
                return value
            if isinstance(value, dict) and "height" in value:
                return value["height"]
    return default


def _images(config):
    size = _first(config, "image_size", "img_size", default=64)
    channels = _first(config, "num_channels", "in_channels", "in_chans", default=3)
    for side in dict.fromkeys((size, 64, 224)):
        yield _numbers(2, channels, side, side)
    if isinstance(getattr(config, "image_size", None), (list, tuple)):
        yield _numbers(2, channels, *config.image_size)
    frames = _first(config, "num_frames", "frames_per_clip", default=4)
    yield _numbers(2, frames, channels, size, size)
    yield _numbers(2, channels, frames, size, size)
    yield _numbers(2, 2, channels, size, size)


def _sounds(config, name):
    mels = _first(
        config, "num_mel_bins", "n_mels", "feature_size", "input_dim", "feature_projection_input_dim", default=80
    )
    source = _first(config, "max_source_positions", default=50)
    if name == "input_features":
        for shape in (
            (2, mels, 2 * source),
            (2, 100, mels),
            (2, mels, 100),
            (2, 1, 256, mels),
            (2, 1, 1024, mels),
            (2, 3000, mels),
        ):
            yield _numbers(*shape)
    else:
        for shape in ((2, 4000), (2, 1, 4000), (2, 100, mels), (2, 256, mels), (2, 1024, mels), (2, mels, 100)):
            yield _numbers(*shape)


def _patches(model, parameters):
    """Of models that take the patches of all images in one row."""
    config = model.config
    patch = _first(config, "patch_size", default=14)
    times = _first(config, "temporal_patch_size", default=1)
    channels = _first(config, "in_channels", "num_channels", "in_chans", default=3)
    grid = "grid_thw" if "grid_thw" in parameters else "image_grid_thw"
    further = {"merge_sizes": torch.ones(2, dtype=torch.long)} if "merge_sizes" in parameters else {}
    for width in (channels * times * patch * patch, channels * patch * patch):
        rows = _numbers(2 * 16, width)
        for name in ("hidden_states", "pixel_values"):
            if name in parameters:
                yield {name: rows, grid: torch.tensor([[1, 4, 4], [1, 4, 4]])} | further


def _series(config):
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    features = config.num_time_features
    return {
        "past_values": _numbers(2, past),
        "past_time_features": _numbers(2, past, features),
        "past_observed_mask": torch.ones(2, past),
        "future_values": _numbers(2, future, seed=4),
        "future_time_features": _numbers(2, future, features, seed=5),
    }


def candidates(model):
    """Arguments of a forward that may be right, the likeliest first."""
    parameters = inspect.signature(type(model).forward).parameters
    config, main = model.config, getattr(model, "main_input_name", "input_ids")
    required = [n for n, p in parameters.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    two = {"decoder_input_ids": ids(2)} if "decoder_input_ids" in parameters else {}
    text = {"input_ids": ids()} if "input_ids" in parameters else {}
    if main == "input_ids" and text:
        if type(model).__name__.endswith("ForMultipleChoice"):
            yield {"input_ids": ids(length=24).reshape(2, 2, LENGTH)}
        if "bbox" in parameters:
            yield text | {"bbox": torch.arange(4).expand(2, LENGTH, 4) * 3} | two
        yield text | two
        yield text
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int):
            yield {name: torch.cat([given[:, :-1], torch.full((2, 1), end)], 1) for name, given in (text | two).items()}
    codebooks = _first(config, "num_codebooks")
    if text and two and codebooks:
        yield text | {"decoder_input_ids": ids(2).repeat(codebooks, 1)}
    if text and "qformer_input_ids" in parameters:
        for images in _images(config):
            yield text | {"pixel_values": images, "qformer_input_ids": ids(3)} | two
    if text and "visual_feats" in parameters:
        seen = {
            "visual_feats": _numbers(2, 5, config.visual_feat_dim),
            "visual_pos": _numbers(2, 5, config.visual_pos_dim),
        }
        yield text | seen
    if "task_inputs" in parameters:
        for images in _images(config):
            yield {"pixel_values": images, "task_inputs": ids(length=_first(config, "task_seq_len", default=77))}
    if "past_time_features" in parameters:
        yield _series(config)
    if "past_values" in parameters:
        shape = (2, _first(config, "context_length", default=32), _first(config, "num_input_channels", default=1))
        yield {"past_values": _numbers(*shape)}
        yield {
            "past_values": _numbers(*shape),
            "future_values": _numbers(2, _first(config, "prediction_length", default=8), shape[2]),
        }
    if main == "inputs" or "inputs" in required:
        yield {"inputs": ids()}
    for name in ("pixel_values", "pixel_values_videos", "images", "pixel_values_images"):
        if name in parameters:
            for images in _images(config):
                yield {name: images}
                if text:
                    yield text | {name: images} | two
                yield {name: images} | two
    for name in ("input_features", "input_values"):
        if name in parameters:
            for sound in _sounds(config, name):
                yield {name: sound} | two
                yield {name: sound}
                if text:
                    yield {name: sound} | text
    if text:
        yield text | two
    width = _first(config, "hidden_size", "d_model", "n_embd", default=64)
    if "grid_thw" in parameters or "image_grid_thw" in parameters:
        yield from _patches(model, parameters)
    for name in ("inputs_embeds", "hidden_states", "encoder_outputs"):
        if name in parameters:
            yield {name: _numbers(2, LENGTH, width)} | two


def build(kind, attention, counts=None):
    """(model, arguments of a forward). attention: "eager" or "sdpa"."""
    reasons = []
    for level in range(4):
        try:
            config = _config(kind, level)
            with torch.device("meta"):
                size = sum(p.numel() for p in kind._from_config(config, attn_implementation=attention).parameters())
            if size > _MOST_PARAMETERS:
                reasons.append(f"level {level}: {size} parameters")
                continue
            torch.manual_seed(0)
            config = _config(kind, level)
            model = kind._from_config(config, attn_implementation=attention).eval()
        except Exception as error:
            if "does not support" in str(error) and "attention" in str(error):
                raise NoSuchAttention(attention) from None
            reasons.append(f"level {level}: {type(error).__name__}: {str(error)[:200]}")
            continue
        model = randomise(model.float())
        why = {}
        for given in candidates(model):
            try:
                with torch.no_grad():
                    model(**given)
                return model, given, level
            except Exception as error:
                why.setdefault(",".join(given), f"{type(error).__name__}: {str(error)[:120]}")
        reasons.append(f"level {level}: no input: {why}")
    raise NotBuilt("; ".join(reasons))
