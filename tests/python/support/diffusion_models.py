"""Small models of diffusers with random weights, and inputs for them: {name: (model, arguments)}."""

from typing import Any

import torch


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _flux(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    model = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    given = {"hidden_states": _rows(2, 16, 4), "encoder_hidden_states": _rows(2, 7, 32)}
    given |= {"pooled_projections": _rows(2, 32), "timestep": torch.tensor([0.3, 0.5])}
    return model, given | {"img_ids": 5 * _rows(16, 3), "txt_ids": torch.zeros(7, 3)}


def _sd3(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    model = diffusers.SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
        qk_norm="rms_norm",
        dual_attention_layers=(0,),
    )
    given = {"hidden_states": _rows(2, 4, 8, 8), "encoder_hidden_states": _rows(2, 7, 32)}
    return model, given | {"pooled_projections": _rows(2, 64), "timestep": torch.tensor([300, 500])}


def _dit(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1000,
    )
    return model, {
        "hidden_states": _rows(2, 4, 8, 8),
        "timestep": torch.tensor([3, 500]),
        "class_labels": torch.tensor([1, 2]),
    }


def _unet(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    given = {"sample": _rows(2, 4, 16, 16), "timestep": torch.tensor([3, 500]), "encoder_attention_mask": mask}
    return model, given | {"encoder_hidden_states": _rows(2, 7, 32)}


def _vae(diffusers: Any) -> tuple[Any, dict[str, Any]]:
    model = diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    return model, {"sample": _rows(1, 3, 16, 16)}


_BUILDERS = {"flux": _flux, "sd3": _sd3, "dit": _dit, "unet": _unet, "vae": _vae}
NAMES = tuple(_BUILDERS)


def build(name: str) -> tuple[Any, dict[str, Any]]:
    """(a model in evaluation mode, arguments of its forward); the same weights each time."""
    import diffusers

    torch.manual_seed(3)
    model, given = _BUILDERS[name](diffusers)
    for parameter in model.parameters():  # some are made of zeros or ones, which hide what is done with them
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), given


@torch.no_grad()
def run(model: Any, given: dict[str, Any]) -> torch.Tensor:
    return model(**given, return_dict=False)[0]
