"""Every column that a session keeps: its storage type, its unit and what it means.

The HDF5 file's ``units`` and ``description`` attributes, and the dtypes that a file must have, come
from here. A number that was not measured is NaN, never 0.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT = "str"
# Columns of studies, which are stored in whatever type they come.
NUMBER, COUNT, EITHER = "number", "count", "number or text"
STORED_AS_THEY_ARE = (NUMBER, COUNT, EITHER)


class ColumnInfo(NamedTuple):
    """The content of a column; ``dtype`` is a numpy type string, or one of the names above."""

    dtype: str
    unit: str
    text: str


STEP_PHASES = "0 build, 1 compile, 2 autotune, 3 capture, 4 warm-up, 5 steady"
PHASE_NAMES = f"{STEP_PHASES}, 6 measuring ceilings, 7 checking results"

STEPS = {
    "t_s": ColumnInfo("f8", "s", "start of the step, since the session began"),
    "gpu_ms": ColumnInfo("f4", "ms", "CUDA events around the step; NaN on the CPU"),
    "wall_ms": ColumnInfo("f4", "ms", "host clock from the start of this step to the next one's"),
    "allocated": ColumnInfo("f8", "bytes", "allocated by tensors; on the CPU the resident set"),
    "reserved": ColumnInfo("f8", "bytes", "held by the caching allocator; NaN on the CPU"),
    "peak": ColumnInfo("f8", "bytes", "highest allocated since the phase began"),
    "phase": ColumnInfo("u1", "", STEP_PHASES),
    "block": ColumnInfo(
        "i4", "", "block of a paired comparison, or round of kernel timing; else 0"
    ),
}

TELEMETRY = {
    "t_s": ColumnInfo("f8", "s", "time of the sample, since the session began"),
    "busy": ColumnInfo("f4", "%", "time in which a kernel ran (NVML); on a CPU, use of its cores"),
    "sm_active": ColumnInfo("f4", "%", "multiprocessors with work (NVML GPM)"),
    "sm_occupancy": ColumnInfo("f4", "%", "resident warps, of the maximum (NVML GPM)"),
    "tensor_active": ColumnInfo("f4", "%", "tensor cores in use (NVML GPM)"),
    "dram_active": ColumnInfo("f4", "%", "memory bandwidth in use (NVML GPM)"),
    "memory_used": ColumnInfo("f8", "bytes", "in use by all processes; on a CPU the runner's own"),
    "power_w": ColumnInfo("f4", "W", "power drawn"),
    "sm_clock": ColumnInfo("f4", "MHz", "clock of the multiprocessors; on a CPU, of its cores"),
    "temperature": ColumnInfo("f4", "degrees Celsius", "temperature of the device"),
    "throttle": ColumnInfo("f8", "", "bit field of throttle reasons (NVML), 0 = none"),
    "others": ColumnInfo("f4", "%", "share of the device's time used by other processes"),
    "energy_j": ColumnInfo("f8", "J", "since the driver was loaded; slow to read, often NaN"),
    "pcie_tx_mb_s": ColumnInfo("f4", "MB/s", "sent over PCIe; slow to read, often NaN"),
    "pcie_rx_mb_s": ColumnInfo("f4", "MB/s", "received over PCIe; slow to read, often NaN"),
}

BREAKDOWN = {
    "name": ColumnInfo("str", "", "kernel or operator"),
    "module": ColumnInfo("str", "", "module of the model that it ran for"),
    "calls": ColumnInfo("i8", "", "calls in one step"),
    "gpu_us": ColumnInfo("f8", "us", "time on the device in one step"),
    "share": ColumnInfo("f8", "", "part of the step's device time, 0 to 1"),
}

MEMORY = {
    "t_s": ColumnInfo("f8", "s", "time of the measurement, since the session began"),
    "parameters": ColumnInfo("f8", "bytes", "weights and buffers of the model"),
    "gradients": ColumnInfo("f8", "bytes", "gradients of the weights"),
    "optimizer": ColumnInfo("f8", "bytes", "state of the optimizer"),
    "activations": ColumnInfo("f8", "bytes", "tensors kept for the backward pass"),
    "workspace": ColumnInfo("f8", "bytes", "scratch space of libraries, private pools of graphs"),
    "other": ColumnInfo("f8", "bytes", "all other allocated memory"),
}

METRIC = {  # values: one matrix a sample, (samples, rows, columns)
    "t_s": ColumnInfo("f8", "s", "time of the sample, since the session began"),
    "values": ColumnInfo("f4", "", "values of a metric that the model reports"),
}

PHASES = [("phase", "u1"), ("start_s", "f8"), ("stop_s", "f8")]  # a compound type, one row a span

EVENTS = {
    "t_s": ColumnInfo("f8", "s", "time of the event, since the session began"),
    "kind": ColumnInfo("str", "", "toggle, note, error, warning or info"),
    "text": ColumnInfo("str", "", "what happened"),
}

ORDERS = {
    "t_s": ColumnInfo("f8", "s", "time of the command, since the session began"),
    "command": ColumnInfo("str", "", "the command to the runner, as JSON"),
    "segments": ColumnInfo("i8", "", "number of segments before it"),
    "comparisons": ColumnInfo("i8", "", "number of comparisons before it"),
    "studies": ColumnInfo("i8", "", "number of studies before it"),
    "claims": ColumnInfo("i8", "", "the study of claims that sent it; -1: a person did"),
}

ENVIRONMENT = {
    "name": ColumnInfo("str", "", "name of the fact, e.g. GPU or torch"),
    "value": ColumnInfo("str", "", "value of the fact"),
}

TITLES = {
    "name": ColumnInfo("str", "", "name of a toggle or field, or NAME=VALUE for one of its values"),
    "value": ColumnInfo("str", "", "its displayed title"),
}

BLOCKS = {
    "arm": ColumnInfo("i4", "", "which arm the block ran, an index into arms"),
    "median_ms": ColumnInfo("f8", "ms", "median step time of the block"),
}
BLOCK_DETAILS = {  # every block has them, or none has
    "pair": ColumnInfo("i4", "", "pair that the block belongs to"),
    "clock_mhz": ColumnInfo("f8", "MHz", "clock of the multiprocessors, NaN where unknown"),
    "void": ColumnInfo("str", "", "why the block does not count, empty where it does"),
    "mean_ms": ColumnInfo("f8", "ms", "mean step time of the block, NaN where unknown"),
    "build": ColumnInfo("i4", "", "build of both arms that the block ran in"),
}

STEP_COLUMNS = {name: column.dtype for name, column in STEPS.items()}
METRIC_COLUMNS = {name: column.dtype for name, column in METRIC.items()}
TELEMETRY_COLUMNS = {name: column.dtype for name, column in TELEMETRY.items()}
