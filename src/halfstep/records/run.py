"""`RunRecord`: one training run, in memory and as a JSON Lines file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from halfstep.records.errors import BadValueError
from halfstep.records.floats import decode_floats, encode_floats
from halfstep.records.plain import PlainRecord
from halfstep.records.step import StepRecord

FORMAT_VERSION = 1
Status = Literal["running", "finished", "stopped", "interrupted", "collapsed"]

_TEXT_FIELDS = ("id", "recipe", "format", "reason", "device", "torch", "started", "unit", "status")


@dataclass(frozen=True, slots=True)
class Validation(PlainRecord):
    """The metrics of a run after some step.

    Attributes:
        step: Attempted updates before it.
        metrics: Metric name to value.
    """

    step: int
    metrics: dict[str, float]


@dataclass(slots=True)
class RunRecord:
    """What one run of a recipe did: its settings, every step, validation, speed.

    The file form is JSON Lines, so that a run that is killed still leaves all the steps it made:
    a header line, one line per step and per validation, and a closing line with the results.

    Attributes:
        recipe: Name of the recipe.
        format: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        reason: Why this format was chosen.
        device: Device type the run was on.
        torch: Version of torch.
        started: Local date and time, ISO 8601.
        unit: What the divisors count: "tokens", "samples".
        settings: What the run was asked for (steps, accumulate, max_norm, seed); `policy` where it
            is more than a format, `validate_every` where it was given.
        steps: One record per attempted update.
        validation: Metric name to value after the run; empty without a validation.
        initial_validation: The same before the first update.
        duration_s: Seconds spent in training steps (validation excluded).
        status: How the run ended: "stopped" is early, because `fit(stop=...)` said so.
        validations: Those of ``fit(validate_every=...)``, the last one after the last step.
        id: Of the run, also after a resume; empty in records of earlier versions.
    """

    recipe: str
    format: str
    reason: str
    device: str
    torch: str
    started: str
    unit: str
    settings: dict[str, Any]
    steps: list[StepRecord] = field(default_factory=list)
    validation: dict[str, float] = field(default_factory=dict)
    initial_validation: dict[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    status: Status = "running"
    validations: list[Validation] = field(default_factory=list)
    id: str = ""

    @property
    def num_updates(self) -> int:
        """Committed updates."""
        return sum(step.updated for step in self.steps)

    @property
    def num_skipped(self) -> int:
        """Attempts that moved nothing."""
        return len(self.steps) - self.num_updates

    @property
    def consumed_per_s(self) -> float | None:
        """Divisor units (tokens, samples) of committed updates per second; ``None`` for means."""
        if not self.steps or not self.duration_s or all(s.divisor is None for s in self.steps):
            return None
        return self.steps[-1].consumed / self.duration_s

    def header(self) -> dict[str, Any]:
        """First line of the file: everything known before the first step."""
        data = self._scalars()
        known = ("recipe", "format", "reason", "device", "torch", "started", "unit", "settings")
        return {"halfstep_run": FORMAT_VERSION, **{key: data[key] for key in ("id", *known)}}

    def footer(self) -> dict[str, Any]:
        """Last line of the file: everything known after the last step."""
        data = self._scalars()
        known = ("validation", "initial_validation", "duration_s", "status")
        return {key: data[key] for key in known}

    def to_dict(self) -> dict[str, Any]:
        """The whole record as plain data for JSON."""
        steps = [step.to_dict() for step in self.steps]
        validations = [one.to_dict() for one in self.validations]
        return {**self.header(), "steps": steps, "validations": validations, **self.footer()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunRecord:
        """The inverse of `to_dict`."""
        version = data.get("halfstep_run")
        if version != FORMAT_VERSION:
            raise BadValueError(
                f"expected a halfstep run record of version {FORMAT_VERSION}, got {version!r};"
                " record the run again with this version."
            )
        fields = {key: value for key, value in data.items() if key != "halfstep_run"}
        steps = [StepRecord.from_dict(step) for step in fields.pop("steps", [])]
        validations = [Validation.from_dict(one) for one in fields.pop("validations", [])]
        decoded = {k: v if k in _TEXT_FIELDS else decode_floats(v) for k, v in fields.items()}
        return cls(**decoded, steps=steps, validations=validations)

    def lines(self) -> Iterator[str]:
        """The file's lines, without line ends."""
        yield json.dumps(self.header(), allow_nan=False)
        for step in self.steps:
            yield json.dumps(step.to_dict(), allow_nan=False)
        for one in self.validations:
            yield json.dumps(validation_row(one), allow_nan=False)
        yield json.dumps(self.footer(), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON Lines."""
        Path(path).write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> RunRecord:
        """Read a file written by `save` or by ``halfstep train --record``.

        A file that stops early (a killed run) loads with the steps it has and status "running".

        Raises:
            BadValueError: The file is not a halfstep run record.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            rows = _read_rows(path, lines)
            if not rows or "halfstep_run" not in rows[0]:
                raise ValueError("no header line")
            steps = [row for row in rows[1:] if "step" in row]
            validations = [
                {"step": row["after_step"], "metrics": row["metrics"]}
                for row in rows[1:]
                if "after_step" in row
            ]
            ends = [row for row in rows[1:] if "status" in row]
            lists = {"steps": steps, "validations": validations}
            return cls.from_dict({**rows[0], **lists, **(ends[-1] if ends else {})})
        except BadValueError:
            raise
        except OSError as error:
            raise BadValueError(f"cannot read {str(path)!r}: {error.strerror}.") from error
        except (ValueError, TypeError) as error:
            raise BadValueError(
                f"{path} is not a halfstep run record ({_first_line(error)}); write one with"
                " `halfstep train --record`."
            ) from error

    def _scalars(self) -> dict[str, Any]:
        lists = ("steps", "validations")
        data = {key: value for key, value in asdict(self).items() if key not in lists}
        encoded: dict[str, Any] = encode_floats(data)
        return encoded


def validation_row(validation: Validation) -> dict[str, Any]:
    """A validation's line of the file; the key "step" is that of the steps' lines."""
    data = validation.to_dict()
    return {"after_step": data["step"], "metrics": data["metrics"]}


def _read_rows(path: str | Path, lines: list[str]) -> list[dict[str, Any]]:
    """The JSON objects; a last line that a killed run left half written is dropped."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            if rows and number == len(lines) and line.startswith("{"):
                break
            raise BadValueError(f"{path}:{number} is not JSON: {error.msg}.") from error
        if not isinstance(row, dict):
            raise BadValueError(f"{path}:{number} is no JSON object.")
        rows.append(row)
    return rows


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].replace("RunRecord.__init__() ", "")
