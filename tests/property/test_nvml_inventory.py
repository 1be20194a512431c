"""Whatever a driver lists next, no GPU is told twice, none that was named is forgotten, and names stay theirs."""

from __future__ import annotations

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from fleetcraft.core.clock import SystemClock
from fleetcraft.telemetry.api import Device, Reason
from fleetcraft.telemetry.deadline import Reader
from fleetcraft.telemetry.nvml_inventory import Found, Group, Listing, is_unidentified, merge

_MOST = 6


def _device(number, index):
    return Device(uuid=f"GPU-{number}", index=index, name="", memory_bytes=None)


def _group(device, handle):
    return Group(
        nvml=None,
        device=device,
        handle=handle,
        reader=Reader("never started", SystemClock()),
        own=lambda _pid: None,
        all_pids=True,
    )


@st.composite
def listings(draw):
    """Some of the GPUs in some order, some of them shut."""
    numbers = draw(st.permutations(range(_MOST)))[: draw(st.integers(0, _MOST))]
    found = []
    for index, number in enumerate(numbers):
        if draw(st.booleans()):
            found.append(Found(index=index, uuid=f"GPU-{number}", handle=ctypes.c_void_p(number + 1)))
        else:
            found.append(Found(index=index, reason=draw(st.sampled_from((Reason.LOST, Reason.ERROR)))))
    return Listing(driver="1", found=tuple(found), is_new=draw(st.booleans()))


@given(st.lists(listings(), min_size=1, max_size=5), st.sets(st.integers(0, _MOST - 1)))
def test_every_gpu_keeps_its_name_and_its_place_in_the_account(steps, before):
    expected = {f"GPU-{number}": _device(number, number) for number in before}
    groups: dict[str, Group] = {}
    named = set(expected)
    for listing in steps:
        groups = merge(groups, listing, expected, _group)
        named.update(found.uuid for found in listing.found if found.handle is not None)
        # Who was ever named is still here, once, under that name.
        assert named <= set(groups)
        assert all(group.gpu.device.uuid == uuid for uuid, group in groups.items())
        # Each place of the list is told by exactly one group, open ones by their own.
        listed = [group for group in groups.values() if group.is_listed]
        assert sorted(group.gpu.device.index for group in listed) == [found.index for found in listing.found]
        for found in listing.found:
            if found.handle is not None:
                group = groups[found.uuid]
                assert (group.gpu.handle.value, group.gpu.device.index) == (found.handle.value, found.index)
                assert group.gpu.missing is None
        # Whatever cannot be asked says why, and keeps no handle of an earlier life.
        opened = {found.uuid for found in listing.found if found.handle is not None}
        for uuid, group in groups.items():
            assert (group.gpu.handle is not None) is (uuid in opened)
            assert (group.gpu.missing is not None) is (uuid not in opened)
            assert not is_unidentified(group.gpu.device) or group.is_listed
