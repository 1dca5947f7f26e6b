"""On a CUDA device: the update alone, its host syncs, the norm, and tokens per second.

    PYTHONPATH=src python benchmarks/gpu.py                       # everything; under four minutes
    PYTHONPATH=src python benchmarks/gpu.py --quick               # few rounds, nothing written
    PYTHONPATH=src python benchmarks/gpu.py --device cpu --tiny   # tests this script, no figures

Every round runs each contestant once, in turn, and ratios are taken *within* a round: the tables
show medians and quartiles. A call is timed three ways: `host` until it returns, `wall` until the
device is done (it was idle before), `device` between two events. The results are rewritten after
every section, so that an interrupted run keeps what it had.

One file, the model included, because it is one visit to one machine that makes one dated report.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

import halfstep as hs
from halfstep.update import OptimizerSlot, Update, Window

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.update import MAX_NORM, OPTIMIZERS, SCALE, SIZES, quartiles

EPS = torch.finfo(torch.float32).eps
WARM_UP = 3  # state is made in the first step, plans in the second, pinned memory in both


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int


GPT2 = Shape(layers=12, width=768, heads=12, context=1024, vocabulary=50304)


@dataclass(frozen=True)
class Scope:
    """How much is run, and where."""

    device: torch.device
    sizes: list[tuple[int, int]]
    shape: Shape
    batch: int
    rounds: int
    rounds_of_large: int
    training_rounds: int
    steps_per_round: int

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"


def scope_for(options: argparse.Namespace) -> Scope:
    device = torch.device(options.device)
    if options.tiny:
        tiny = Shape(layers=2, width=32, heads=2, context=16, vocabulary=64)
        return Scope(device, [(4, 64), (2, 4_096)], tiny, 2, 2, 2, 2, 1)
    if options.quick:
        return Scope(device, SIZES, GPT2, options.batch, 10, 5, 2, 2)
    return Scope(device, SIZES, GPT2, options.batch, 100, 30, 6, 2)


class Times(NamedTuple):
    """Milliseconds of one call."""

    host: float
    wall: float
    device: float


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(call: Callable[[], object], device: torch.device) -> Times:
    """Time one call on an idle device."""
    if device.type != "cuda":
        begin = time.perf_counter()
        call()
        elapsed = (time.perf_counter() - begin) * 1e3
        return Times(elapsed, elapsed, elapsed)
    first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    synchronize(device)
    begin = time.perf_counter()
    first.record()
    call()
    last.record()
    returned = time.perf_counter()
    synchronize(device)
    done = time.perf_counter()
    return Times((returned - begin) * 1e3, (done - begin) * 1e3, first.elapsed_time(last))


# ---------------------------------------------------------------------------- the update alone


class Contestant:
    """One way to do the update: its parameters, the call, and the scale of its gradients."""

    def __init__(self, params: list[Parameter], call: Callable[[], object], scale: float) -> None:
        self.params = params
        self.call = call
        self.scale = scale

    def prepare(self, base: list[Tensor], buffers: list[Tensor]) -> None:
        """Fresh gradients, in memory that outlives the call."""
        for p, source, buffer in zip(self.params, base, buffers, strict=True):
            p.grad = torch.mul(source, self.scale, out=buffer)


def halfstep_way(params: list[Parameter], optimizer: Optimizer, loss: Tensor) -> Contestant:
    scale = hs.DynamicLossScale(SCALE)
    scale.to(loss.device)  # as the first backward does
    slot = OptimizerSlot("optimizer", optimizer, scale, max_norm=MAX_NORM, fuse=False)
    update = Update([slot])

    def call() -> None:
        window = Window()
        window.add(loss, None, {})
        slot.window = window
        update.run([slot])

    return Contestant(params, call, SCALE)


def stock_way(params: list[Parameter], optimizer: Optimizer, loss: Tensor) -> Contestant:
    scaler = torch.amp.GradScaler(loss.device.type, init_scale=SCALE)
    scaler.scale(loss)

    def call() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        scaler.step(optimizer)
        scaler.update()

    return Contestant(params, call, SCALE)


def update_ways(
    make: Callable[..., Optimizer], count: int, size: int, device: torch.device
) -> dict[str, Contestant]:
    """All ways over two sets of parameters: one for fused, one for the default optimizer."""
    torch.manual_seed(0)
    fused_params = [Parameter(torch.randn(size, device=device)) for _ in range(count)]
    default_params = [Parameter(p.detach().clone()) for p in fused_params]
    fused, default = make(fused_params, fused=True), make(default_params)
    loss = torch.zeros((), device=device)
    return {
        "bare": Contestant(fused_params, fused.step, 1.0),
        "halfstep": halfstep_way(fused_params, fused, loss),
        "stock fused": stock_way(fused_params, fused, loss),
        "halfstep default": halfstep_way(default_params, default, loss),
        "stock default": stock_way(default_params, default, loss),
    }


def gradients(count: int, size: int, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    base = [torch.randn(size, device=device) * 0.01 for _ in range(count)]
    return base, [torch.empty_like(source) for source in base]


def measure_update(
    make: Callable[..., Optimizer], count: int, size: int, rounds: int, device: torch.device
) -> dict[str, Any]:
    """Times and ratios of one optimizer and one size."""
    ways = update_ways(make, count, size, device)
    base, buffers = gradients(count, size, device)
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for turn in range(rounds + WARM_UP):
        for name, way in ways.items():
            way.prepare(base, buffers)
            taken = time_call(way.call, device)
            if turn >= WARM_UP:
                times[name].append(taken)
    row: dict[str, Any] = {}
    for name, taken_by in times.items():
        columns = dict(zip(Times._fields, map(list, zip(*taken_by, strict=True)), strict=True))
        row[name] = {f"{field}_ms": quartiles(v, [1.0] * rounds) for field, v in columns.items()}
    for field in Times._fields:
        taken_ms = {name: [getattr(t, field) for t in times[name]] for name in ways}
        ours = taken_ms["halfstep"]
        row[f"{field}: halfstep / bare"] = quartiles(ours, taken_ms["bare"])
        for stock in ("stock fused", "stock default"):
            row[f"{field}: {stock} / halfstep"] = quartiles(taken_ms[stock], ours)
    return row


def run_updates(scope: Scope) -> dict[str, Any]:
    """The update step of every optimizer and size."""
    rows: dict[str, Any] = {}
    for name, make in OPTIMIZERS.items():
        for count, size in scope.sizes:
            rounds = scope.rounds_of_large if count * size > 10**7 else scope.rounds
            row = measure_update(make, count, size, rounds, scope.device)
            rows[f"{name} {count} x {size}"] = row
            print(f"\n{name}, {count} x {size:,}: median ms, ratios with quartiles")
            print(f"  {'':18}{'host':>9}{'wall':>9}{'device':>9}")
            for way, value in row.items():
                if isinstance(value, dict):
                    print(f"  {way:18}" + "".join(f"{ms[1]:9.3f}" for ms in value.values()))
                else:
                    print(f"  {way:34}{spread(value)}")
            release()
    return rows


# ---------------------------------------------------------------------------------- host syncs


def syncs_of(call: Callable[[], object]) -> list[str]:
    """Where a call made the host wait, as ``file:line`` of the Python that did."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [
        f"{Path(warning.filename).name}:{warning.lineno}"
        for warning in caught
        if "called a synchronizing" in str(warning.message)
    ]


def engine_way(device: torch.device) -> Callable[[], Callable[[], object]]:
    """Forward outside of the count; backward and step, with a divisor on the device, inside."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).to(device)
    optimizer = AdamW(model.parameters(), fused=True)
    engine = hs.Engine(model, optimizer, precision="fp16", max_norm=MAX_NORM)
    batch = torch.randn(32, 64, device=device)
    divisor = torch.full((), 32, device=device)

    def prepare() -> Callable[[], object]:
        with engine.autocast():
            total = model(batch).float().square().sum()
        loss = hs.LossSum(total, divisor, squares=total)

        def call() -> None:
            engine.backward(loss)
            engine.step()

        return call

    return prepare


def run_syncs(scope: Scope, steps: int = 5) -> dict[str, Any]:
    """Host syncs per step, once state, plans and pinned memory exist."""
    device = scope.device
    control = torch.zeros((), device=device)
    found: dict[str, list[str]] = {}
    for name, make in OPTIMIZERS.items():
        base, buffers = gradients(20, 256, device)
        for way, contestant in update_ways(make, 20, 256, device).items():
            places: list[str] = []
            for turn in range(WARM_UP + steps):
                contestant.prepare(base, buffers)
                waited = syncs_of(contestant.call)
                places += waited if turn >= WARM_UP else []
            found[f"{name}, {way}"] = places
    prepare = engine_way(device)
    places = []
    for turn in range(WARM_UP + steps):
        waited = syncs_of(prepare())
        places += waited if turn >= WARM_UP else []
    found["Engine.backward and step, LossSum"] = places
    rows: dict[str, Any] = {
        way: {"per_step": len(places) / steps, "places": sorted(set(places))}
        for way, places in found.items()
    }
    seen = len(syncs_of(control.item))
    rows["control"] = {"per_step": float(seen), "places": ["one .item()"]}
    print("\nhost syncs per step")
    for way, row in rows.items():
        print(f"  {way:36}{row['per_step']:5.1f}   {', '.join(row['places'])}")
    must_not_wait = [way for way in found if way.endswith(", halfstep") or "Engine" in way]
    if seen != 1:
        rows["failure"] = f"the control saw {seen} syncs in one .item(); the counts mean nothing"
    elif any(found[way] for way in must_not_wait):
        rows["failure"] = "a fused halfstep update made the host wait"
    return rows


# ------------------------------------------------------------------------------------ the norm


def foreach_norm(grads: list[Tensor], dtype: torch.dtype) -> Tensor:
    norms = torch._foreach_norm(grads, 2, dtype=dtype)
    joined: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return joined


def run_norms(scope: Scope) -> dict[str, Any]:
    """Accumulating in float64 against float32: time and error."""
    device, rows = scope.device, {}
    print("\nnorm: ms on the device, float64 accumulation over float32, error in float32 eps")
    print(f"  {'':24}{'float32':>9}{'float64':>9}   {'ratio':21}{'error f32':>12}{'f64':>8}")
    for count, size in scope.sizes:
        for kind in ("normal", "constant"):
            torch.manual_seed(0)
            grads = [torch.full((size,), 0.01, device=device) for _ in range(count)]
            if kind == "normal":
                grads = [torch.randn(size, device=device) * 0.01 for _ in range(count)]
            row = measure_norm(grads, scope.rounds_of_large, device)
            rows[f"{kind} {count} x {size}"] = row
            print(
                f"  {kind:9} {f'{count} x {size:,}':14}{row['float32_ms'][1]:9.3f}"
                f"{row['float64_ms'][1]:9.3f}   {spread(row['float64 / float32']):21}"
                f"{row['float32_error_eps']:12.2f}{row['float64_error_eps']:8.2f}"
            )
            release()
    return rows


def measure_norm(grads: list[Tensor], rounds: int, device: torch.device) -> dict[str, Any]:
    """Both accumulations against sums of float64 squares."""
    exact = math.sqrt(math.fsum(float(grad.double().square().sum()) for grad in grads))
    variants = {"float32": torch.float32, "float64": torch.float64}
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + WARM_UP):
        for name, dtype in variants.items():
            times = time_call(lambda dtype=dtype: foreach_norm(grads, dtype), device)  # type: ignore[misc]
            if turn >= WARM_UP:
                taken[name].append(times.device)
    row: dict[str, Any] = {"float64 / float32": quartiles(taken["float64"], taken["float32"])}
    for name, dtype in variants.items():
        error = abs(float(foreach_norm(grads, dtype)) - exact) / exact
        row[f"{name}_ms"] = quartiles(taken[name], [1.0] * rounds)
        row[f"{name}_error_eps"] = round(error / EPS, 3)
    return row


# ------------------------------------------------------------------------------------ training


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.before_mlp = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, 4 * shape.width)
        self.down = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        qkv = self.qkv(self.before_attention(x)).view(batch, context, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, context, width))
        hidden: Tensor = x + self.down(F.gelu(self.up(self.before_mlp(x))))
        return hidden


class GPT(nn.Module):
    """GPT-2's layout: learned positions, pre-norm, output weights tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class Trainer:
    """A model with its optimizer, and one way to make a step."""

    def __init__(self, shape: Shape, format_name: str, device: torch.device) -> None:
        torch.manual_seed(0)
        self.policy = hs.Policy(format_name)
        self.device = device
        with device:
            self.model = GPT(shape)
        self.optimizer = AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.peak_bytes = 0

    def step(self, batch: Tensor) -> None:
        raise NotImplementedError

    def loss(self) -> float:
        """Loss of the last step."""
        raise NotImplementedError

    def timed(self, batches: list[Tensor]) -> float:
        """Seconds of a step on each batch; notes the memory at the highest point.

        That is what the trainer keeps between steps plus the rise during a step, so that the
        other trainer's memory is not charged to this one.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
        synchronize(self.device)
        begin = time.perf_counter()
        for batch in batches:
            self.step(batch)
        synchronize(self.device)
        seconds = time.perf_counter() - begin
        if self.device.type == "cuda":
            rise = torch.cuda.max_memory_allocated(self.device) - before
            self.peak_bytes = max(self.peak_bytes, self._kept_bytes() + rise)
        return seconds

    def _kept_bytes(self) -> int:
        states = (t for state in self.optimizer.state.values() for t in state.values())
        return sum(t.numel() * t.element_size() for t in [*self.model.parameters(), *states])


class Stock(Trainer):
    """autocast, GradScaler where FP16 needs it, clipping, fused AdamW."""

    def __init__(self, shape: Shape, format_name: str, device: torch.device) -> None:
        super().__init__(shape, format_name, device)
        self.params = list(self.model.parameters())
        self.scaler = torch.amp.GradScaler(device.type, enabled=format_name == "fp16")
        self._loss = torch.zeros(())

    def step(self, batch: Tensor) -> None:
        with self.policy.autocast(self.device.type):
            loss = loss_fn(self.model, batch)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.params, MAX_NORM)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self._loss = loss.detach()

    def loss(self) -> float:
        return float(self._loss)


class Halfstep(Trainer):
    """`Engine.train_step`; outcomes are looked at when the clock has stopped."""

    def __init__(self, shape: Shape, format_name: str, device: torch.device) -> None:
        super().__init__(shape, format_name, device)
        self.engine = hs.Engine(
            self.model, self.optimizer, precision=self.policy, max_norm=MAX_NORM
        )
        self._outcome: hs.StepOutcome | None = None

    def step(self, batch: Tensor) -> None:
        self._outcome = self.engine.train_step([batch], loss_fn)

    def loss(self) -> float:
        assert self._outcome is not None
        return self._outcome.loss


def train(shape: Shape, format_name: str, batch: int, scope: Scope) -> dict[str, Any]:
    """Both ways on the same batches, a few steps each in turn."""
    stock = Stock(shape, format_name, scope.device)
    ours = Halfstep(shape, format_name, scope.device)
    taken: dict[str, list[float]] = {"stock": [], "halfstep": []}
    for turn in range(scope.training_rounds + 2):
        tokens = [
            torch.randint(shape.vocabulary, (batch, shape.context + 1), device=scope.device)
            for _ in range(scope.steps_per_round)
        ]
        for name, trainer in (("stock", stock), ("halfstep", ours)):
            seconds = trainer.timed(tokens)
            if turn >= 2:
                taken[name].append(seconds)
    num_tokens = [float(scope.steps_per_round * batch * shape.context)] * scope.training_rounds
    on_cuda = scope.on_cuda
    return {
        "batch": batch,
        "stock_tokens_per_s": quartiles(num_tokens, taken["stock"]),
        "halfstep_tokens_per_s": quartiles(num_tokens, taken["halfstep"]),
        "halfstep / stock": quartiles(taken["stock"], taken["halfstep"]),
        "stock_peak_bytes": stock.peak_bytes if on_cuda else None,
        "halfstep_peak_bytes": ours.peak_bytes if on_cuda else None,
        "stock_loss": stock.loss(),
        "halfstep_loss": ours.loss(),
        "halfstep_skipped": ours.engine.num_skipped,
    }


def formats_of(device: torch.device) -> dict[str, str]:
    """Formats, and why one of them is left out (empty: it is not)."""
    if device.type != "cuda":
        return {"fp32": "", "tf32": "only CUDA has it", "bf16": "", "fp16": ""}
    old = torch.cuda.get_device_capability(device) < (8, 0)
    reason = "no matrix units for it on this device" if old else ""
    return {"fp32": "", "tf32": reason, "bf16": reason, "fp16": ""}


def run_training(scope: Scope) -> dict[str, Any]:
    """Tokens per second of a stock loop and of `Engine.train_step`, format by format."""
    rows: dict[str, Any] = {}
    shape, batch = scope.shape, scope.batch
    print(f"\ntraining, {shape}: tokens/s, ratio with quartiles, peak memory in GiB")
    print(f"  {'':6}{'batch':>6}{'stock':>11}{'halfstep':>11}   {'halfstep / stock':21}", end="")
    print(f"{'stock':>8}{'halfstep':>9}{'losses':>16}")
    for name, reason in formats_of(scope.device).items():
        if reason:
            print(f"  {name:6}skipped: {reason}")
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        row: dict[str, Any] | None = None
        while row is None:
            try:
                row = train(shape, "fp32" if name == "tf32" else name, batch, scope)
            except torch.OutOfMemoryError:
                if batch == 1:
                    raise
            release()
            if row is None:
                batch //= 2
                print(f"  {name:6}out of memory; batch {batch} from here on")
        rows[name] = row
        print(
            f"  {name:6}{batch:6}{row['stock_tokens_per_s'][1]:11,.0f}"
            f"{row['halfstep_tokens_per_s'][1]:11,.0f}   {spread(row['halfstep / stock']):21}"
            f"{gibibytes(row['stock_peak_bytes']):>8}{gibibytes(row['halfstep_peak_bytes']):>9}"
            f"{row['stock_loss']:8.3f}{row['halfstep_loss']:8.3f}"
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    return rows


# ---------------------------------------------------------------------------------- the report


def spread(values: list[float]) -> str:
    low, median, high = values
    return f"{median:.2f} [{low:.2f}, {high:.2f}]"


def gibibytes(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 2**30:.2f}"


def release() -> None:
    """Give freed memory back, so that one measurement does not shape the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def machine(scope: Scope, options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    flags = [f"--{name}" for name in ("quick", "tiny") if getattr(options, name)]
    facts: dict[str, Any] = {
        "date": date.today().isoformat(),
        "device": "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python benchmarks/gpu.py", f"--batch {options.batch}", *flags]),
    }
    if scope.on_cuda:
        properties = torch.cuda.get_device_properties(scope.device)
        facts["device"] = properties.name
        facts["capability"] = f"{properties.major}.{properties.minor}"
        facts["memory_bytes"] = properties.total_memory
        facts["cuda"] = torch.version.cuda
    return facts


def write(results: dict[str, Any], folder: Path | None) -> Path | None:
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    slug = re.sub(r"[^a-z0-9]+", "-", str(results["device"]).lower()).strip("-")
    path = folder / f"{results['date']}-gpu-{slug}.json"
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


def run_sections(scope: Scope, results: dict[str, Any], folder: Path | None) -> bool:
    """Run all sections; one that fails does not take the figures of the others with it."""
    sections: dict[str, Callable[[Scope], dict[str, Any]]] = {
        "update": run_updates,
        "syncs": run_syncs,
        "norm": run_norms,
        "training": run_training,
    }
    if not scope.on_cuda:
        del sections["syncs"]
        print("\nhost syncs: skipped, there are none without a CUDA device")
    clean = True
    for name, section in sections.items():
        begin = time.perf_counter()
        try:
            results[name] = section(scope)
        except Exception as error:
            traceback.print_exc()
            results[name] = {"error": str(error)}
            clean = False
        if message := results[name].get("failure"):
            print(f"FAILED: {message}")
            clean = False
        results.setdefault("seconds", {})[name] = round(time.perf_counter() - begin, 1)
        write(results, folder)
        release()
    return clean


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, nothing written")
    parser.add_argument("--batch", type=int, default=8, help="sequences per training step")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="folder for the results; writes them always")
    options = parser.parse_args()
    if options.device == "cpu" and not options.tiny:
        parser.error("--device cpu only tests this script; give --tiny as well")
    if options.batch < 1:
        parser.error(f"--batch must be at least 1, got {options.batch}")
    return options


def main() -> int:
    options = parse_options()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "benchmarks/gpu.py needs a CUDA device and torch finds none;"
            " --device cpu --tiny tests the script itself.",
            file=sys.stderr,
        )
        return 2
    scope = scope_for(options)
    results = machine(scope, options)
    folder: Path | None = options.out
    if folder is None and not (options.quick or options.tiny):
        folder = Path(__file__).parent / "results"
    print(f"{results['device']}, torch {results['torch']}, python {results['python']}")
    clean = run_sections(scope, results, folder)
    print(f"\n{sum(results['seconds'].values()):.0f} seconds")
    if path := write(results, folder):
        print(f"written to {os.path.relpath(path)}")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
