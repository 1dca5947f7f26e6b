"""Correct loops: the programs that mutants are made from."""

from __future__ import annotations

from programs import Op, Program

A0: Op = ("backward", "opt_a", "0", "scaler")
A1: Op = ("backward", "opt_a", "1", "scaler")
B0: Op = ("backward", "opt_b", "0", "scaler")
UPDATE: Op = ("update", "scaler")
TESTED: Op = ("tested update", "scaler")
ZERO_A: Op = ("zero", "opt_a")
ZERO_B: Op = ("zero", "opt_b")
STEP_A: Op = ("step", "scaler", "opt_a")
STEP_B: Op = ("step", "scaler", "opt_b")
UNSCALE_A: Op = ("unscale", "scaler", "opt_a")
UNSCALE_B: Op = ("unscale", "scaler", "opt_b")
CLIP_A: Op = ("clip", "opt_a")
CLIP_B: Op = ("clip", "opt_b")
CLOSE_A = (UNSCALE_A, CLIP_A, STEP_A)
CLOSE_B = (UNSCALE_B, CLIP_B, STEP_B)
CLOSE_APART: tuple[Op, ...] = (
    ("unscale", "scaler_b", "opt_b"),
    ("clip", "opt_b"),
    ("step", "scaler_b", "opt_b"),
    ("update", "scaler_b"),
)

ONE = (("opt_a", "scaler"),)
TWO = (("opt_a", "scaler"), ("opt_b", "scaler"))
APART = (("opt_a", "scaler"), ("opt_b", "scaler_b"))
B0_APART: Op = ("backward", "opt_b", "0", "scaler_b")
B1_APART: Op = ("backward", "opt_b", "1", "scaler_b")

LOOPS = (
    Program("plain", (ZERO_A, A0, STEP_A, UPDATE)),
    Program("clipped", (A0, *CLOSE_A, UPDATE, ZERO_A)),
    Program("accumulated", (ZERO_A, A0, A1, *CLOSE_A, UPDATE)),
    Program(
        "two optimizers",
        (A0, B0, UNSCALE_A, UNSCALE_B, CLIP_A, CLIP_B, STEP_A, STEP_B, UPDATE, ZERO_A, ZERO_B),
        TWO,
    ),
    Program("in turn", (ZERO_A, A0, *CLOSE_A, ZERO_B, B0, *CLOSE_B, UPDATE), TWO),
    Program("two scalers", (ZERO_A, A0, *CLOSE_A, UPDATE, ZERO_B, B0_APART, *CLOSE_APART), APART),
    Program("scheduled", (A0, *CLOSE_A, TESTED, ZERO_A, ("schedule if ran", "opt_a"))),
    Program("averaged", (ZERO_A, A0, A1, STEP_A, TESTED, ("average if ran", "opt_a"))),
    Program(
        "partial window",
        (A0, A1, *CLOSE_A, UPDATE, ZERO_A, A0, STEP_A, UPDATE, ZERO_A),
    ),
    Program(
        "joint clip",
        (A0, B0, UNSCALE_A, UNSCALE_B, ("clip both",), STEP_A, STEP_B, UPDATE, ZERO_A, ZERO_B),
        TWO,
    ),
    Program(
        "scheduled and averaged",
        (
            *(ZERO_A, A0, STEP_A, TESTED),
            *(("schedule if ran", "opt_a"), ("average if ran", "opt_a")),
        ),
    ),
    Program("enabled by a setting", (ZERO_A, A0, *CLOSE_A, UPDATE), flag=True),
    Program(
        "given up early",
        (ZERO_A, A0, UNSCALE_A, CLIP_A, ("give up", "scaler", "opt_a"), STEP_A, UPDATE),
    ),
    Program(
        "warm-up",
        (A0, ("late backward", "opt_a", "1", "scaler"), *CLOSE_A, UPDATE, ZERO_A),
    ),
)

# Nothing is tuned on these: what the rules say about them was looked at once, at the end.
HELD_OUT = (
    Program(
        "held out: accumulated, scheduled",
        (A0, A1, *CLOSE_A, TESTED, ("schedule if ran", "opt_a"), ZERO_A),
    ),
    Program(
        "held out: apart, accumulated",
        (
            *(ZERO_B, A0, B0_APART, A1, B1_APART, STEP_A, ("step", "scaler_b", "opt_b")),
            *(("update", "scaler_b"), UPDATE, ZERO_A),
        ),
        APART,
    ),
)
