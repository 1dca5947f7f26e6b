"""Models of speech: CTC on waveforms, Whisper on spectrograms, a classifier of sounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import halfstep as hs
from zoo.case import healthy
from zoo.data import log_mel, speech, tokens
from zoo.recipes import of_transformers, recipe

LETTERS = 32
WAVES: dict[str, Any] = {
    "vocab_size": LETTERS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32, 32, 32, 32, 32),
    "conv_stride": (5, 4, 2, 2, 2),
    "conv_kernel": (10, 8, 4, 4, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 5,
    "mask_time_length": 4,
    "ctc_loss_reduction": "mean",
    "ctc_zero_infinity": True,
    "pad_token_id": 0,
}


def _ctc(name: str, **settings: Any) -> hs.Recipe:
    prefix = "Wav2Vec2Conformer" if "conformer" in name else "Wav2Vec2"

    def model() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{prefix}Config")(**{**WAVES, **settings})
        made: nn.Module = getattr(transformers, f"{prefix}ForCTC")(config)
        return made

    batches = [
        {"input_values": speech(2, 12000, seed=seed), "labels": tokens(2, 8, LETTERS, seed)}
        for seed in range(4)
    ]
    return recipe(name, model, of_transformers, batches)


@healthy("transformers")
def wav2vec2() -> hs.Recipe:
    return _ctc("wav2vec2", mask_time_prob=0.05)


@healthy("transformers")
def wav2vec2_conformer() -> hs.Recipe:
    return _ctc("wav2vec2_conformer", position_embeddings_type="rotary", mask_time_prob=0.05)


@healthy("transformers")
def whisper() -> hs.Recipe:
    def model() -> nn.Module:
        from transformers import WhisperConfig, WhisperForConditionalGeneration

        return WhisperForConditionalGeneration(
            WhisperConfig(
                vocab_size=256,
                num_mel_bins=40,
                d_model=64,
                encoder_layers=2,
                decoder_layers=2,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=128,
                decoder_ffn_dim=128,
                max_source_positions=50,
                max_target_positions=32,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            )
        )

    batches = [
        {
            "input_features": log_mel(speech(4, 100 * 160, seed=seed), 40)[:, :, :100],
            "labels": tokens(4, 16, 256, seed),
        }
        for seed in range(4)
    ]
    return recipe("whisper", model, of_transformers, batches)


@healthy("transformers")
def ast() -> hs.Recipe:
    """Sounds by the pitch of their voice: an audio spectrogram transformer."""

    def model() -> nn.Module:
        from transformers import ASTConfig, ASTForAudioClassification

        return ASTForAudioClassification(
            ASTConfig(
                hidden_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                intermediate_size=128,
                max_length=96,
                num_mel_bins=64,
                num_labels=4,
            )
        )

    def batch(seed: int) -> dict[str, Tensor]:
        spectrum = log_mel(speech(8, 96 * 160, seed=seed), 64)[:, :, :96].transpose(1, 2)
        strongest = spectrum.mean(1)[:, :16].argmax(1)
        return {"input_values": spectrum, "labels": torch.div(strongest, 4, rounding_mode="floor")}

    return recipe("ast", model, of_transformers, [batch(seed) for seed in range(4)])
