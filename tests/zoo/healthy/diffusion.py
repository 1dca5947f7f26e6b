"""Diffusion and what belongs to it: U-Nets, DiT, autoencoders of diffusers, a vector quantiser."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import images
from zoo.recipes import recipe

SIZE = 32
Batch = dict[str, Tensor]


def noised(channels: int = 3, size: int = SIZE, count: int = 4) -> list[Batch]:
    """Images with noise at random times of a cosine schedule.

    Args:
        channels: 3 for pixels; more for latents, which are the image's channels mixed.
        size: Of the images.
        count: Of images in a batch.
    """
    batches = []
    for seed in range(4):
        chance = torch.Generator().manual_seed(seed)
        image, labels = images(count, size, seed=seed)
        if channels != 3:
            mix = torch.randn(channels, 3, generator=chance) / 3**0.5
            image = torch.einsum("ij,njhw->nihw", mix, image)
        time = torch.randint(1000, (count,), generator=chance)
        share = torch.cos(time / 1000 * torch.pi / 2)[:, None, None, None]
        noise = torch.randn(image.shape, generator=chance)
        noisy = share * image + (1 - share**2).sqrt() * noise
        words = torch.randn(count, 8, 32, generator=chance)
        batches.append(
            {"noisy": noisy, "noise": noise, "time": time, "labels": labels, "words": words}
        )
    return batches


def predict_noise(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the predicted noise.

    Args:
        model: One of diffusers, with a result named ``sample``.
        batch: As from `noised`.
    """
    predicted = model(batch["noisy"], batch["time"]).sample
    return F.mse_loss(predicted.float(), batch["noise"])


@healthy("diffusers")
def unet2d() -> hs.Recipe:
    return recipe("unet2d", _unet2d, predict_noise, noised())


@healthy("diffusers")
def unet2d_checkpointed() -> hs.Recipe:
    def model() -> Any:
        made: Any = _unet2d()
        made.enable_gradient_checkpointing()
        return made

    return recipe("unet2d_checkpointed", model, predict_noise, noised())


def _unet2d() -> nn.Module:
    from diffusers import UNet2DModel

    made: nn.Module = UNet2DModel(
        sample_size=SIZE,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        norm_num_groups=8,
        attention_head_dim=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return made


@healthy("diffusers")
def unet2d_condition() -> hs.Recipe:
    def model() -> nn.Module:
        from diffusers import UNet2DConditionModel

        made: nn.Module = UNet2DConditionModel(
            sample_size=16,
            in_channels=4,
            out_channels=4,
            layers_per_block=1,
            block_out_channels=(32, 64),
            norm_num_groups=8,
            attention_head_dim=4,
            cross_attention_dim=32,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        )
        return made

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        result = model(batch["noisy"], batch["time"], encoder_hidden_states=batch["words"])
        return F.mse_loss(result.sample.float(), batch["noise"])

    return recipe("unet2d_condition", model, loss_fn, noised(4, 16))


@healthy("diffusers")
def dit() -> hs.Recipe:
    def model() -> nn.Module:
        from diffusers import DiTTransformer2DModel

        made: nn.Module = DiTTransformer2DModel(
            num_attention_heads=4,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            num_layers=3,
            sample_size=16,
            patch_size=2,
            num_embeds_ada_norm=1000,
            norm_num_groups=4,
        )
        return made

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        result = model(batch["noisy"], timestep=batch["time"], class_labels=batch["labels"])
        return F.mse_loss(result.sample.float(), batch["noise"])

    return recipe("dit", model, loss_fn, noised(4, 16))


@healthy("diffusers")
def autoencoder_kl() -> hs.Recipe:
    """With its Kullback-Leibler term, at a weight of 1e-6 as usual for latents."""

    def model() -> nn.Module:
        from diffusers import AutoencoderKL

        made: nn.Module = AutoencoderKL(
            block_out_channels=(32, 64),
            layers_per_block=1,
            norm_num_groups=8,
            latent_channels=4,
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        )
        return made

    def loss_fn(model: Any, batch: Batch) -> Tensor:
        distribution = model.encode(batch["image"]).latent_dist
        decoded = model.decode(distribution.sample()).sample
        difference = F.l1_loss(decoded.float(), batch["image"])
        return difference + 1e-6 * distribution.kl().float().mean()

    batches = [{"image": images(4, SIZE, seed=seed)[0]} for seed in range(4)]
    return recipe("autoencoder_kl", model, loss_fn, batches)


@healthy("vector_quantize_pytorch")
def vq_vae() -> hs.Recipe:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            from vector_quantize_pytorch import VectorQuantize

            self.encode = nn.Sequential(
                nn.Conv2d(3, 32, 4, 2, 1), nn.GELU(), nn.Conv2d(32, 32, 4, 2, 1)
            )
            self.quantise = VectorQuantize(
                dim=32, codebook_size=64, decay=0.8, accept_image_fmap=True
            )
            self.decode = nn.Sequential(
                nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            codes, _, commitment = self.quantise(self.encode(x))
            return self.decode(codes), commitment

    def loss_fn(model: nn.Module, batch: Batch) -> Tensor:
        decoded, commitment = model(batch["image"])
        return F.mse_loss(decoded.float(), batch["image"]) + commitment.float().sum()

    batches = [{"image": images(8, SIZE, seed=seed)[0]} for seed in range(4)]
    return recipe("vq_vae", Autoencoder, loss_fn, batches)
