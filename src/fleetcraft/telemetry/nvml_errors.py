"""What the driver's error codes mean: for one value, for a device, and for the whole host."""

from __future__ import annotations

from fleetcraft.telemetry.api import DeviceState, HostState, Reason

UNINITIALIZED = 1
NOT_SUPPORTED = 3
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
VERSION_MISMATCH = 18

_REASONS = {
    NOT_SUPPORTED: Reason.UNSUPPORTED,
    4: Reason.NO_PERMISSION,
    NOT_FOUND: Reason.NOT_FOUND,
    DRIVER_NOT_LOADED: Reason.NO_DRIVER,
    TIMEOUT: Reason.HUNG,
    LIBRARY_NOT_FOUND: Reason.NO_DRIVER,
    13: Reason.OLD_DRIVER,
    15: Reason.LOST,
    16: Reason.RESET_REQUIRED,
    VERSION_MISMATCH: Reason.DRIVER_MISMATCH,
    21: Reason.NOT_FOUND,  # no data yet
    25: Reason.OLD_DRIVER,  # the driver knows another version of the structure
    26: Reason.UNSUPPORTED,  # withdrawn
    28: Reason.LOST,  # no such GPU any more
}
# A device that gave one of these is not asked further in that sweep.
STATES = {Reason.LOST: DeviceState.LOST, Reason.RESET_REQUIRED: DeviceState.RESET_REQUIRED}
# After these the library must be opened anew.
STALE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED})

# Sentinels of NVML and DCGM where a number should stand: all ones, and the blanks with the next three.
_BLANKS = frozenset(
    {2**64 - 1, 2**63 - 1, 2**32 - 1}
    | {first + more for first in (0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0, 2**47) for more in range(4)}
)


def code_of(error: BaseException) -> int | None:
    """The driver's number; None for an error that is not the driver's."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def reason_of(error: BaseException) -> Reason:
    """Why the value that was asked for is absent."""
    code = code_of(error)
    if code is not None:
        return _REASONS.get(code, Reason.ERROR)
    # The binding says a missing symbol in words of its own, and an old binding lacks the call itself.
    if isinstance(error, AttributeError) or "Mismatch" in type(error).__name__:
        return Reason.OLD_DRIVER
    return Reason.ERROR


def is_blank(value: float) -> bool:
    """True for a sentinel."""
    return value in _BLANKS


def host_state(code: int | None, *, has_driver: bool) -> tuple[HostState, str]:
    """What an error of the library's start says of the host, in one sentence."""
    if code == VERSION_MISMATCH:
        return HostState.BROKEN, (
            f"{Reason.DRIVER_MISMATCH}: the driver and its library are of different versions; "
            "work that runs may be fine, and a restart of the node ends this"
        )
    if code == LIBRARY_NOT_FOUND:
        if has_driver:
            return HostState.BROKEN, f"{Reason.NO_DRIVER}: the driver is loaded, but libnvidia-ml.so.1 is not found"
        return HostState.NO_GPU, f"{Reason.NO_DRIVER}: no NVIDIA driver is loaded on this host"
    if code == DRIVER_NOT_LOADED:
        if has_driver:
            return HostState.BROKEN, f"{Reason.NO_DRIVER}: the driver says that it is not loaded, yet it is there"
        return HostState.NO_GPU, f"{Reason.NO_DRIVER}: no NVIDIA driver is loaded on this host"
    if code == 4:
        return HostState.BROKEN, f"{Reason.NO_PERMISSION}: this user may not open the NVIDIA driver"
    return HostState.BROKEN, ""
