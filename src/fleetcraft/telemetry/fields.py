"""The measured fields of a device, their units, and their order in a segment; only ever add at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column. `kind` says how it adds up over time."""

    name: str
    kind: str  # level: time-weighted; counter: grows, and restarts with an epoch; state: the last one counts
    decimals: int = 0
    what: str


FIELDS = (
    Field(name="util_pct", kind="level", decimals=1, what="share of time with any kernel on the device"),
    Field(name="memory_used_bytes", kind="level", what="memory in use, without what the driver reserves"),
    Field(name="memory_total_bytes", kind="state", what="memory of the device"),
    Field(name="power_w", kind="level", decimals=2, what="board power, averaged or instant as the device tells"),
    Field(name="energy_mj", kind="counter", what="energy since the driver was loaded, in millijoules"),
    Field(name="temperature_c", kind="level", what="temperature of the GPU"),
    Field(name="sm_clock_mhz", kind="level", what="clock of the multiprocessors"),
    Field(name="memory_clock_mhz", kind="level", what="clock of the memory"),
    Field(name="throttle_mask", kind="state", what="why the clock is lowered, as the driver's bits"),
    Field(name="performance_state", kind="state", what="0 is the fastest"),
    Field(name="ecc_corrected", kind="counter", what="corrected memory errors since the driver was loaded"),
    Field(name="ecc_uncorrected", kind="counter", what="memory errors that could not be corrected"),
    Field(name="remapped_rows", kind="counter", what="memory rows replaced after errors"),
    Field(name="xid", kind="state", what="the last Xid that was seen as an event"),
    Field(name="xid_events", kind="counter", what="Xid events since the sampler began"),
    Field(name="pcie_generation", kind="state", what="generation of the PCIe link now"),
    Field(name="pcie_width", kind="state", what="lanes of the PCIe link now"),
    Field(name="nvlinks_up", kind="state", what="NVLink links that are up"),
    Field(name="own_pids", kind="level", what="processes of ours that hold the device"),
    Field(name="own_memory_bytes", kind="level", what="memory that those processes hold"),
    Field(name="foreign_pids", kind="level", what="processes of others that hold the device"),
    Field(name="foreign_memory_bytes", kind="level", what="memory that those processes hold"),
    Field(name="sm_active_pct", kind="level", decimals=2, what="share of time with a warp on a multiprocessor"),
    Field(name="sm_occupancy_pct", kind="level", decimals=2, what="warps held against warps possible"),
    Field(name="tensor_pct", kind="level", decimals=2, what="share of time with tensor pipes at work"),
    Field(name="dram_pct", kind="level", decimals=2, what="share of the memory bandwidth in use"),
    Field(name="fp16_pct", kind="level", decimals=2, what="share of time with FP16 pipes at work"),
    Field(name="fp32_pct", kind="level", decimals=2, what="share of time with FP32 pipes at work"),
    Field(name="fp64_pct", kind="level", decimals=2, what="share of time with FP64 pipes at work"),
    Field(name="memory_reserved_bytes", kind="state", what="memory that the driver keeps for itself"),
    Field(name="power_averaged", kind="state", what="1: power_w is an average of the driver, 0: of an instant"),
    Field(name="power_scope", kind="state", what="of what power_w is: 0 the GPU, 1 the module with its CPU"),
    Field(name="module_power_w", kind="level", decimals=2, what="power of the module, CPU and memory included"),
)
NAMES = tuple(field.name for field in FIELDS)
