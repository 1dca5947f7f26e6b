"""Correct programs in functions, classes and frameworks. None may give a finding."""

SHAPES = {
    "functions with parameters": """\
import torch


def train_one_epoch(model, criterion, optimizer, data_loader, device, args, scaler=None):
    model.train()
    for i, (image, target) in enumerate(data_loader):
        with torch.cuda.amp.autocast(enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if args.clip_grad_norm is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if args.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad_norm)
            optimizer.step()
""",
    "a trainer in pieces": """\
import torch


class Trainer:
    def __init__(self, model, optimizer, cfg):
        self.model = model
        self.optimizer = optimizer
        self.cfg = cfg
        self.scaler = torch.amp.GradScaler("cuda", enabled=cfg.fp16)

    def compute_loss(self, batch):
        with torch.autocast("cuda", enabled=self.cfg.fp16):
            return self.model(batch).loss

    def training_step(self, batch):
        loss = self.compute_loss(batch) / self.cfg.accumulate
        self.scaler.scale(loss).backward()
        return loss.detach()

    def optimizer_step(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def fit(self, loader):
        self.optimizer.zero_grad()
        for i, batch in enumerate(loader):
            self.training_step(batch)
            if (i + 1) % self.cfg.accumulate == 0:
                self.optimizer_step()
""",
    "the same pieces, driven from elsewhere": """\
import torch


class Step:
    def __init__(self, model, optimizer, scaler):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def apply(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
""",
    "Accelerate": """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for batch in loader:
    with accelerator.accumulate(model), accelerator.autocast():
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
""",
    "Lightning, manual optimization": """\
import torch
import lightning as L


class GAN(L.LightningModule):
    def training_step(self, batch, batch_idx):
        opt_g, opt_d = self.optimizers()
        with torch.autocast("cuda"):
            g_loss = self.generator_loss(batch)
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        self.clip_gradients(opt_g, gradient_clip_val=0.5)
        opt_g.step()
""",
    "timm's scaler": """\
import torch
from contextlib import suppress
from timm.utils import NativeScaler, dispatch_clip_grad


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, amp_autocast=suppress,
                    loss_scaler=None, model_ema=None, lr_scheduler=None):
    for batch_idx, (input, target) in enumerate(loader):
        with amp_autocast():
            loss = loss_fn(model(input), target)
        optimizer.zero_grad()
        if loss_scaler is not None:
            loss_scaler(loss, optimizer, clip_grad=args.clip_grad, parameters=model.parameters())
        else:
            loss.backward()
            if args.clip_grad is not None:
                dispatch_clip_grad(model.parameters(), value=args.clip_grad)
            optimizer.step()
        if model_ema is not None:
            model_ema.update(model)


loss_scaler = NativeScaler()
""",
    "timm's scaler itself": """\
import torch
from timm.utils import dispatch_clip_grad


class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    def __call__(self, loss, optimizer, clip_grad=None, clip_mode="norm", parameters=None,
                 create_graph=False, need_update=True):
        self._scaler.scale(loss).backward(create_graph=create_graph)
        if need_update:
            if clip_grad is not None:
                assert parameters is not None
                self._scaler.unscale_(optimizer)
                dispatch_clip_grad(parameters, clip_grad, mode=clip_mode)
            self._scaler.step(optimizer)
            self._scaler.update()
""",
    "apex": """\
from apex import amp

model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
for x, y in loader:
    loss = criterion(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()
    optimizer.zero_grad()
grad_scaler = None
""",
}
