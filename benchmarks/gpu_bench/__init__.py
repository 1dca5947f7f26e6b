"""Parts of `benchmarks/gpu.py`, the first ten minutes on a GPU.

* `cases`: cases in order of value within a budget; `report`: the files and tables of a run.
* `device_time`: time, kernels, copies and waits of a call; rounds of several ways in turn.
* `gpt2`, `resnet50`: the models; `workloads`: with optimizers and batches; `setup`: with sizes.
* `trainers`: the stock loop, Engine, the drop-in and Accelerate, each as one class.
* `own_tests`, `steps`, `updates`, `training`: the sections.
"""
