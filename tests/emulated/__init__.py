"""An accelerator that is none: tensors that say ``cuda:0``, computed on the CPU.

* `tensors`: the wrapper tensor and how each operation reaches the CPU.
* `demands`: what CUDA's kernels refuse, so that the emulated ones refuse it too.
* `clock`: counts of waits and operations; work that is still in flight; streams and events.
* `autocast`: CUDA's autocast list on these tensors.
* `torch_cuda`: what of ``torch.cuda`` is replaced meanwhile; `emulated_device` switches all of it
  on.

Shown: each operation of the host that waits for the device, with the place in the source; each
launch; dtypes, shapes, strides and devices that fused kernels demand; contents of pinned memory
that have not arrived yet; events that are read before they were recorded; the default device; the
device's own random numbers.

Not shown, so that a real device has to: rounding of CUDA's kernels, time, the threads in which
CUDA's backward runs, races between streams, memory that runs out, CUDA graphs and compilation,
sparse tensors, several devices, and whatever asks C++ for the device of a tensor (to C++ these
tensors are on "meta").
"""

from emulated.clock import Counts, Wait
from emulated.tensors import DEVICE, DeviceTensor, inner, on_device
from emulated.torch_cuda import emulated_device

__all__ = ["DEVICE", "Counts", "DeviceTensor", "Wait", "emulated_device", "inner", "on_device"]
