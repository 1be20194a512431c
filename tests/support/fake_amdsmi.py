"""A stand-in for AMD's `amdsmi` binding: devices with power, memory and a counter that follows the power."""

from __future__ import annotations

from typing import Any

_STEP_UJ = 15.3


class FakeAmdsmi:
    """Handles are UUIDs. Change `cards` by hand; every one of them is a module of its own."""

    def __init__(self, count: int) -> None:
        self.cards: dict[str, dict[str, Any]] = {
            f"amd-{index:02d}": {"oam": index, "power": 300, "average": "N/A", "util": 0, "used": 300, "energy_uj": 1e9}
            for index in range(count)
        }
        self.is_broken = False

    def draw(self, seconds: float) -> None:
        for card in self.cards.values():
            card["energy_uj"] += card["power"] * seconds * 1e6

    def lose(self, uuid: str) -> None:
        del self.cards[uuid]

    def break_all(self) -> None:
        self.is_broken = True

    def amdsmi_get_processor_handles(self) -> list[str]:
        if self.is_broken:
            raise RuntimeError("the library does not answer")
        return list(self.cards)

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X", "oam_id": self.cards[handle]["oam"]}

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return handle

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return f"0000:{list(self.cards).index(handle):02x}:00.0"

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return {"gfx_activity": self.cards[handle]["util"], "umc_activity": "N/A"}

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, Any]:
        return {"vram_total": 196592, "vram_used": self.cards[handle]["used"]}

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        card = self.cards[handle]
        return {"current_socket_power": card["power"], "average_socket_power": card["average"]}

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, Any]:
        return {"energy_accumulator": int(self.cards[handle]["energy_uj"] / _STEP_UJ), "counter_resolution": _STEP_UJ}
