"""Frozen models with small trained parts, of peft."""

from __future__ import annotations

from typing import Any

from torch import nn

import halfstep as hs
from zoo.case import healthy
from zoo.healthy.decoders import llama
from zoo.healthy.sequences import t5
from zoo.recipes import trained


def _adapted(name: str, base: hs.Recipe, config: Any) -> hs.Recipe:
    """The base model is trained a little and frozen; the adapter is at its start."""
    pretrained = trained(base)

    def model() -> nn.Module:
        import peft

        made: nn.Module = peft.get_peft_model(pretrained.model(), config())
        return made

    return hs.Recipe(name, model, base.loss_fn, base.batches, base.optimizer)


@healthy("transformers", "peft")
def lora_llama() -> hs.Recipe:
    """One factor starts at 0, so that the gradients of the other one are 0: that is no fault."""

    def config() -> Any:
        from peft import LoraConfig

        return LoraConfig(
            r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"]
        )

    return _adapted("lora_llama", llama(), config)


@healthy("transformers", "peft")
def ia3_t5() -> hs.Recipe:
    def config() -> Any:
        from peft import IA3Config

        return IA3Config(target_modules=["k", "v", "wo"], feedforward_modules=["wo"])

    return _adapted("ia3_t5", t5(), config)
