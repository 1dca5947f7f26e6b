"""Import torchvision where its compiled half does not load.

The wheel of the registry is a CUDA build. Beside a CPU build of torch its library does not load,
and then the import fails: it describes the shapes of two operators that nobody has declared.
Declared they are enough for everything in torchvision that is written in Python. They have no
kernel: whoever calls them (non-maximum suppression, hence Faster R-CNN and Mask R-CNN in training)
gets torchvision's own error that its operators could not be loaded.
"""

from __future__ import annotations

import torch

_kept: list[torch.library.Library] = []


def declare() -> None:
    """Declare the operators, unless torchvision's own library has or there is no torchvision."""
    if _kept:
        return
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        return
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
