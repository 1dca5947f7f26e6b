"""What other libraries call the settings of `Engine`, `fit` and `Recipe`."""

from __future__ import annotations

from collections.abc import Iterable


def _called(setting: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), f"the setting is called {setting}")


def _all(names: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), hint)


def _merged(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {name: hint for part in parts for name, hint in part.items()}


_ACCUMULATION = (
    "gradient_accumulation_steps grad_accumulation_steps accumulation_steps accumulate_grad_batches"
    " gradient_accumulation grad_accum accumulate accumulation num_micro_batches per_update"
)
_LIMIT = (
    "max_grad_norm grad_clip gradient_clip clip_grad clip_grad_norm clip_grad_norm_ clip_norm"
    " gradient_clip_val gradient_clipping grad_clip_norm clip_gradients max_gradient_norm"
)
_FORMAT = "amp_dtype dtype mixed_precision amp autocast autocast_dtype amp_level opt_level"
_SCALE = "init_scale growth_factor backoff_factor growth_interval min_scale max_scale hysteresis"
_FORMATS = {
    "fp16": 'write precision="fp16"',
    "bf16": 'write precision="bf16"',
    "half": 'write precision="fp16"',
    "use_amp": 'write precision="fp16" or precision="bf16"',
}

ENGINE = _merged(
    [
        _called("max_norm", _LIMIT),
        _called('precision ("fp16", "bf16", "fp32" or "auto")', _FORMAT),
        _called("schedule", "scheduler lr_scheduler lr_schedule schedulers"),
        _called("ema", "ema_decay ema_model averaged_model swa"),
        _FORMATS,
        _all(
            _ACCUMULATION,
            "the engine accumulates whatever a window holds: pass windows of n micro-batches"
            " (hs.micro_batches(loader, per_update=n))",
        ),
        _all(
            "scaler grad_scaler loss_scaler",
            "the engine scales by itself and replaces the GradScaler; its scale is set by"
            " loss_scale",
        ),
        _all(
            f"{_SCALE} initial_scale_power loss_scale_window max_consecutive_skips",
            "give a loss scale that has it: loss_scale=hs.DynamicLossScale(init_scale=2**16)",
        ),
        _all(
            "grad_clip_value clip_value clip_grad_value gradient_clip_algorithm",
            "clip takes a callable on the parameters, which may clip by value",
        ),
        _all("models", "model takes one model or a mapping by name"),
        _all("optimizers", "optimizer takes one optimizer or a mapping by name"),
        _all("lr learning_rate weight_decay", "give it to the optimizer"),
        _all("device device_type", "the engine works where the parameters of the model are"),
        _all("loss_fn criterion", "give the loss function to train_step(window, loss_fn)"),
        _all("enabled", 'precision="fp32" trains without low precision'),
    ]
)

FIT = _merged(
    [
        _called("max_norm", _LIMIT),
        _called('precision ("fp16", "bf16", "fp32" or "auto")', _FORMAT),
        _called("accumulate", _ACCUMULATION.replace(" accumulate ", " ")),
        _called("steps", "max_steps num_steps iterations max_iters num_updates"),
        _called("resume", "resume_from ckpt_path resume_from_checkpoint"),
        _called("checkpoints (an hs.CheckpointFolder)", "checkpoint save_to folder"),
        _FORMATS,
        _all("epochs num_epochs max_epochs", "steps counts updates, over as many rounds"),
        _all("model optimizer loss_fn batches schedule ema", "the recipe makes it"),
        _all("batch_size lr learning_rate", "it belongs into the recipe"),
        _all("callback callbacks", "on_step is called with the run and each step's record"),
    ]
)

RECIPE = _merged(
    [
        _called("batches", "loader dataloader data train_loader train_data dataset train_dataset"),
        _called("loss_fn", "loss criterion loss_function"),
        _called("validate", "val evaluate evaluation validation val_fn eval_fn"),
        _called("schedule", "scheduler lr_scheduler"),
        _called("optimizer", "optim opt optimizers"),
        _called("model", "net network module models"),
        _called("ema", "ema_decay"),
        _all("max_norm precision steps accumulate seed device", "give it to hs.fit"),
    ]
)
