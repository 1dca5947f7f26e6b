"""Checkpoints: `file` saves and loads one, `fits` refuses a foreign one, `folder` keeps a run's."""
