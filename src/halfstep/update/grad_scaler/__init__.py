"""The drop-in for torch's class: `state` holds its numbers, `scaler` its calls."""
