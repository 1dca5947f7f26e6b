"""Checkpoints: `file` saves and loads one in `parts`, `fits` compares it with the engine first and
`plain` refuses what would not load; `folder` keeps those of a run, `resume` goes on from one and
says which `choices` of the recipe it does not use."""
