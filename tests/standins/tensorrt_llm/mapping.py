"""Stand-in for ``tensorrt_llm.mapping`` (0.16.0): names, defaults and checks of ``Mapping``."""

from __future__ import annotations

from typing import Any


class Mapping:
    def __init__(
        self,
        world_size: int = 1,
        rank: int = 0,
        gpus_per_node: int = 8,
        cp_size: int = 1,
        tp_size: int = 1,
        pp_size: int = 1,
        moe_tp_size: int = -1,
        moe_ep_size: int = -1,
    ) -> None:
        if moe_tp_size == -1 and moe_ep_size == -1:
            moe_tp_size, moe_ep_size = tp_size, 1
        elif moe_tp_size == -1:
            moe_tp_size = tp_size // moe_ep_size
        elif moe_ep_size == -1:
            moe_ep_size = tp_size // moe_tp_size
        if tp_size * pp_size * cp_size != world_size:
            raise ValueError(
                "world_size must equal to tp_size * pp_size * cp_size, "
                f"but got {world_size} != {tp_size} * {pp_size} * {cp_size}"
            )
        if moe_tp_size * moe_ep_size != tp_size:
            raise ValueError(
                f"tp_size must equal to moe_tp_size * moe_ep_size, but got {tp_size} != "
                f"{moe_tp_size} * {moe_ep_size}"
            )
        self.world_size, self.rank, self.gpus_per_node = world_size, rank, gpus_per_node
        self.cp_size, self.tp_size, self.pp_size = cp_size, tp_size, pp_size
        self.moe_tp_size, self.moe_ep_size = moe_tp_size, moe_ep_size

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))
