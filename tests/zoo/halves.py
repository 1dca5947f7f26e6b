"""Which half each case belongs to: drawn once, by chance, within each kind.

The doctor may be looked at, and mended, on the development half. The held-out half is there for
figures that nobody has worked towards: its cases are run without the doctor until a first reading
is wanted, and that reading goes into the docs whatever it is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

SEED = 20261201

HEALTHY: Mapping[str, Sequence[str]] = {
    "vision": (
        "beit",
        "convnext_atto",
        "densenet",
        "efficientnet_b0",
        "ghostnet",
        "levit",
        "mlp_mixer",
        "mobilenetv3_small",
        "mobilevit",
        "nf_regnet",
        "regnetx",
        "resnet10t",
        "swin",
        "vit_tiny",
        "xcit",
    ),
    "detection": ("detr", "fcos", "retinanet", "ssdlite", "yolos"),
    "segmentation": ("deeplabv3plus", "fpn_dice", "lraspp", "segformer", "unet"),
    "encoder": ("albert", "bert", "deberta_v2", "electra", "modernbert"),
    "decoder": ("bloom", "gemma2", "gpt2", "gpt_neox", "llama", "qwen3", "x_decoder"),
    "sequence to sequence": ("bart", "mt5", "t5"),
    "mixture of experts": ("mixtral", "qwen2_moe", "switch"),
    "state space": ("mamba", "mamba2", "rwkv"),
    "speech": ("ast", "wav2vec2", "wav2vec2_conformer", "whisper"),
    "diffusion": ("autoencoder_kl", "dit", "unet2d", "unet2d_condition", "vq_vae"),
    "gan": ("dcgan", "wgan_penalty"),
    "image and text": ("clip", "siglip", "vilt"),
    "graph": ("gat", "gcn", "gin", "graph_transformer"),
    "recurrent": ("gru_tagger", "lstm_forecast", "lstm_language"),
    "adapter": ("ia3_t5", "lora_llama"),
    "checkpointed": (
        "bert_checkpointed",
        "gpt2_checkpointed",
        "llama_checkpointed_reentrant",
        "unet2d_checkpointed",
        "vit_checkpointed",
    ),
    "trained": (
        "clip_trained",
        "efficientnet_trained",
        "gpt2_trained",
        "llama_trained",
        "lstm_trained",
        "t5_trained",
    ),
}

PLANTED: Mapping[str, Sequence[str]] = {
    "overflow": (
        "attention_logits",
        "contrastive_temperature",
        "embedding_scaled",
        "experts_gated_product",
        "linear_attention_sum",
        "llama_gated_product",
        "second_moment_of_large_activations",
        "softmax_in_place",
        "t5_feed_forward",
        "variance_of_large_activations",
    ),
    "overflow in backward": (
        "gradient_amplified",
        "loss_of_a_million_elements",
        "loss_times_1e9",
        "reciprocal_of_small",
    ),
    "underflow": (
        "adaptive_scale_squared",
        "cosine_near_zero",
        "eps_below_fp16",
        "favor_normaliser",
        "instance_norm_of_constant_input",
        "probability_product",
        "root_of_small_variance",
    ),
    "rounding": (
        "batch_norm_after_rounded_input",
        "coordinates_far_from_zero",
        "cumulative_position",
        "layer_norm_by_difference",
        "log_of_one_minus_probability",
        "positions_counted_in_half",
        "rotary_angles",
        "timestep_in_half",
        "variance_below_zero",
    ),
    "gradient underflow": (
        "auxiliary_loss_weight",
        "deep_saturated_gates",
        "loss_times_1e_minus_13",
        "path_scaled_down",
    ),
    "not precision": (
        "all_masked_row",
        "gan_log_of_zero",
        "learning_rate_too_high",
        "masked_mean_without_targets",
        "norm_at_zero",
        "root_at_zero",
    ),
    "input": (
        "bad_sample",
        "poisoned_running_variance",
        "poisoned_table",
        "weight_from_half_checkpoint",
    ),
    "dtype": (
        "bce_of_probabilities",
        "half_index_table",
        "mask_of_minus_1e9",
        "vector_half_loss",
    ),
    "state": (
        "average_in_bf16",
        "counter_in_half",
        "learning_rate_too_small",
        "weights_in_bf16",
    ),
}

# draw(HEALTHY) and draw(PLANTED), written down: a case that is added later moves no other one
# into another half.
HELD_OUT = frozenset(
    {
        "albert",
        "all_masked_row",
        "ast",
        "attention_logits",
        "autoencoder_kl",
        "auxiliary_loss_weight",
        "average_in_bf16",
        "bad_sample",
        "bart",
        "batch_norm_after_rounded_input",
        "bert",
        "clip",
        "clip_trained",
        "contrastive_temperature",
        "convnext_atto",
        "coordinates_far_from_zero",
        "counter_in_half",
        "dcgan",
        "deberta_v2",
        "deeplabv3plus",
        "dit",
        "efficientnet_b0",
        "efficientnet_trained",
        "eps_below_fp16",
        "fcos",
        "gan_log_of_zero",
        "gat",
        "gemma2",
        "ghostnet",
        "gradient_amplified",
        "graph_transformer",
        "ia3_t5",
        "layer_norm_by_difference",
        "linear_attention_sum",
        "llama",
        "llama_checkpointed_reentrant",
        "llama_gated_product",
        "lraspp",
        "lstm_forecast",
        "mamba",
        "mask_of_minus_1e9",
        "mixtral",
        "mlp_mixer",
        "mobilevit",
        "nf_regnet",
        "path_scaled_down",
        "poisoned_table",
        "probability_product",
        "qwen3",
        "reciprocal_of_small",
        "resnet10t",
        "root_at_zero",
        "root_of_small_variance",
        "ssdlite",
        "switch",
        "t5",
        "t5_feed_forward",
        "t5_trained",
        "timestep_in_half",
        "vector_half_loss",
        "vilt",
        "vit_checkpointed",
        "vq_vae",
        "whisper",
        "x_decoder",
        "xcit",
        "yolos",
    }
)


def draw(names: Mapping[str, Sequence[str]], seed: int = SEED) -> frozenset[str]:
    """The held-out half: of every kind half of its cases, the odd one by a coin.

    Args:
        names: Cases by kind.
        seed: Of the chance.
    """
    held_out: set[str] = set()
    for kind, cases in names.items():
        chance = random.Random(f"{seed} {kind}")
        shuffled = sorted(cases)
        chance.shuffle(shuffled)
        half = (len(shuffled) + chance.randint(0, 1)) // 2
        held_out.update(shuffled[:half])
    return frozenset(held_out)
