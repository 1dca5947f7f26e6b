"""Models after a hundred steps: weights that have moved, statistics that are filled."""

from __future__ import annotations

import halfstep as hs
from zoo.case import healthy
from zoo.healthy.decoders import gpt2, llama
from zoo.healthy.image_and_text import clip
from zoo.healthy.recurrent import lstm_language
from zoo.healthy.sequences import t5
from zoo.healthy.vision import classifier
from zoo.recipes import trained


@healthy("transformers")
def gpt2_trained() -> hs.Recipe:
    return trained(gpt2())


@healthy("transformers")
def llama_trained() -> hs.Recipe:
    return trained(llama())


@healthy("transformers")
def t5_trained() -> hs.Recipe:
    return trained(t5())


@healthy("transformers")
def clip_trained() -> hs.Recipe:
    return trained(clip())


@healthy("timm")
def efficientnet_trained() -> hs.Recipe:
    return trained(classifier("efficientnet_lite0", size=64, count=16))


@healthy()
def lstm_trained() -> hs.Recipe:
    return trained(lstm_language())
