"""The real vLLM compiles a module for this machine's processor, with the adapter's environment.

    python -m tests.standins.vllm_compiled_module ENGINE_DIR CACHE_DIR

Prints a JSON object: how many graphs were compiled and how many came from the cache. The pass that looks for
vLLM's kernels is left out, because they need a GPU.
"""

import json
import sys
from pathlib import Path
from typing import Any

from runner.engines.vllm.arguments import prepare_environment, read_arguments

_COMPILATION = {
    "mode": 3,  # As on a GPU: vLLM's own backend.
    "cudagraph_mode": "NONE",
    "compile_sizes": [],
    "splitting_ops": [],
    "pass_config": {"fuse_norm_quant": False, "fuse_act_quant": False, "fuse_rope_kvcache_cat_mla": False},
}


def main(engine_dir: Path, cache_dir: str) -> dict[str, int]:
    arguments = {**read_arguments(engine_dir, {}), "compilation_config": _COMPILATION}
    prepare_environment(arguments, cache_dir)
    import torch
    from vllm.compilation.counter import compilation_counter
    from vllm.compilation.decorators import support_torch_compile
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    from runner.engines.vllm.client import make_config

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__()

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(numbers) * 2

    FixFunctionalizationPass.__call__ = lambda self, graph: None
    FixFunctionalizationPass.uuid = lambda self: ""
    config = make_config(arguments)
    with set_current_vllm_config(config), set_forward_context({}, config), torch.no_grad():
        support_torch_compile(dynamic_arg_dims={"numbers": 0})(Module)(vllm_config=config)(torch.zeros(8, 16))
    return {
        "compiled": compilation_counter.num_aot_compiles,
        "loaded": compilation_counter.num_aot_artifacts_loaded,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
