"""`doctor --profile`: where the time of a step goes, in FP32 and in a low-precision format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from halfstep.precision import Policy
from halfstep.records import BadValueError
from halfstep.tools.doctor.runs.one_batch import OneBatch

_WARM_UPS = 2


def write_profile(
    subject: OneBatch, policy: Callable[[str], Policy], formats: Sequence[str], path: Path
) -> None:
    """Profile one forward and backward per format into a trace for chrome://tracing or Perfetto.

    Casts show as ``aten::_to_copy``, and what did not get faster stands beside what did.

    Args:
        subject: Model and batch.
        policy: Makes the policy of a format.
        formats: Which to run; each is a range of its own name in the trace.
        path: A ``.json`` file.

    Raises:
        BadValueError: The file cannot be written.
    """
    activities = [ProfilerActivity.CPU]
    if subject.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for format in [*formats] * _WARM_UPS:
        subject.run(policy(format))
    with profile(activities=activities, acc_events=True) as recorded:
        for format in formats:
            with record_function(f"halfstep {format}"):
                subject.run(policy(format))
            if subject.device.type == "cuda":
                torch.cuda.synchronize(subject.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        raise BadValueError(f"cannot write the profile {str(path)!r}: {error}.") from error
