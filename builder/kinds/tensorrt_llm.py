"""The ``tensorrt_llm`` engine: the model is converted to a checkpoint and compiled for this machine's GPU."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from builder.build_cache import CacheEntry
from builder.config.config import BuildConfig
from builder.engine_environment import program_environment
from builder.program import Needs, Program, clock, run_program
from builder.sizes.model_shape import UnknownShape
from builder.steps import (
    EnginePlan,
    Step,
    Work,
    download_step,
    obtain,
    place_fast_tokenizer,
    place_generation_config,
)
from builder.trtllm.build_host import BuildHost, find_build_host, gpus_for
from builder.trtllm.commands import Command, cache_facts, commands_of
from builder.trtllm.engine_checks import EngineConfig, check_checkpoint, check_engine, read_engine, try_engine
from builder.trtllm.flags import VERSION
from builder.trtllm.rules import check
from builder.trtllm.sizing import Sizing, check_fits, fit, size, sizing_lines
from builder.trtllm.summary import TrtllmBuild
from builder.trtllm.workspace import find_inputs, place_inputs, place_model
from builder.weights.checkpoint import read_config
from builder.weights.files import need_space, place
from builder.weights.model_files import identity
from engine.tar.manifest import EngineFacts, Library

KEYS = frozenset({"weight_format", "example_name", "convert_to_ft", "quantize", "build", "target"})


class Plan(EnginePlan):
    """Checked programs of a config; ``fit_model`` adapts them to the model."""

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        self.build, self.notes = check(config)
        self.commands = commands_of(config, self.build)
        self.sizing: Sizing | None = None

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        self.build, notes = fit(self.build, values)
        self.commands = commands_of(self.config, self.build)
        try:
            self.sizing = size(self.build, values)
        except UnknownShape as exc:
            return [*notes, f"sizes are not known: the model's config.json has no {exc}"]
        gpus = gpus_for(self.config)
        check_fits(self.sizing, self.build, self.config.model_name, gpus)
        return [*notes, *sizing_lines(self.sizing, gpus)]

    def steps(self) -> list[Step]:
        run = _Run(self)
        return [
            Step(f"check this machine: a GPU and TensorRT-LLM {VERSION}", run.check_machine),
            Step("read the model's config.json and check the plan", run.read_model),
            Step(download_step(self.config, with_weights=True).title, run.download),
            *(Step(command.title, run.program_step(command.key)) for command in self.commands.values()),
            Step("check the engine: ranks, config.json, sizes, a short generation", run.check_engine),
            Step("tokenizer", run.place_tokenizer),
        ]


class _Run:
    machine: BuildHost
    values: Mapping[str, Any]
    folder: Path
    """Folder where the programs run."""
    inputs: Mapping[str, Path]
    """Inputs of programs beside the model: source by path in the workspace."""
    engine_entry: CacheEntry
    checkpoint_entry: CacheEntry
    checkpoint_lock: ExitStack

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.engine: Path | None = None
        """Folder of the engine, once there is one."""
        self.is_from_cache = False
        self.has_checkpoint = False

    @property
    def build(self) -> TrtllmBuild:
        return self.plan.build

    def check_machine(self, work: Work) -> None:
        self.machine = find_build_host(work.config, self.build)
        work.report(f"{self.machine.gpu_words}; TensorRT-LLM {VERSION}")

    def read_model(self, work: Work) -> None:
        self.folder = work.scratch / "src"
        self.folder.mkdir()
        obtain(work, work.config, with_weights=not _is_on_hub(work.config))
        self.values = read_config(work.model).values
        for line in self.plan.fit_model(self.values):
            work.report(line)
        self.inputs = find_inputs(work.config, self.build.calls, work.folders)
        self._search_cache(work)
        if self.engine is None and (sizing := self.plan.sizing) is not None:
            needed = sizing.checkpoint_bytes + 2 * sizing.engine_bytes
            need_space(work.cache, needed, purpose="the build")

    def _search_cache(self, work: Work) -> None:
        config, commands = work.config, self.plan.commands.values()
        common = {
            "model": config.model_name,
            "model revision": identity(work.model),
            "library version": VERSION,
        }
        earlier = [command for command in commands if command.key != "build"]
        facts = common | cache_facts(config, earlier, self.inputs)
        self.checkpoint_entry = CacheEntry(work.cache, "checkpoint", facts, work.report)
        facts = common | cache_facts(config, commands, self.inputs) | {"SM": self.machine.sm}
        self.engine_entry = CacheEntry(work.cache, "engine", facts, work.report)
        work.resources.enter_context(self.engine_entry.locked())
        self.engine = self.engine_entry.find()
        self.is_from_cache = self.engine is not None

    def download(self, work: Work) -> None:
        if self.engine is not None:
            work.report("not needed: the engine is in the build cache")
            return
        place_inputs(self.inputs, self.folder)
        if self.build.checkpoint is not None:
            self.checkpoint_lock = work.resources.enter_context(ExitStack())
            self.checkpoint_lock.enter_context(self.checkpoint_entry.locked())
            if (found := self.checkpoint_entry.find()) is not None:
                _link(found, self.folder / self.plan.commands[self.build.checkpoint.key].output_dir)
                self.has_checkpoint = True
                self.checkpoint_lock.close()
                return
        if _is_on_hub(work.config):
            pinned = work.config.model_copy(update={"revision": work.model.revision})
            obtain(work, pinned, with_weights=True)
        place_model(work.config, work.model, self.folder)

    def program_step(self, key: str) -> Callable[[Work], None]:
        def run(work: Work) -> None:
            command = self.plan.commands[key]
            if self.engine is not None or (self.has_checkpoint and key != "build"):
                work.report("not needed: its result is in the build cache")
                return
            self._run_command(work, command)
            made = self.folder / command.output_dir
            if key == "build":
                self.engine = made
            elif self.build.checkpoint is not None and key == self.build.checkpoint.key:
                check_checkpoint(key, made, self.build)
                kept = self.checkpoint_entry.keep(made)
                if kept != made:
                    _link(kept, made)
                self.checkpoint_lock.close()

        return run

    def _run_command(self, work: Work, command: Command) -> None:
        (self.folder / command.output_dir).mkdir(parents=True, exist_ok=True)
        program = Program(
            step=command.key,
            command=command.words,
            folder=self.folder,
            environment=program_environment(offline=not command.calibrates),
            needs=self._needs(command.key),
            gpu_memory_bytes=min((gpu.memory_bytes for gpu in self.machine.gpus), default=None),
        )
        work.report(f"{command.key}: done in {clock(run_program(program, work.report))}")

    def _needs(self, key: str) -> Needs:
        return self.plan.sizing.needs[key] if self.plan.sizing is not None else Needs()

    def check_engine(self, work: Work) -> None:
        assert self.engine is not None
        if self.is_from_cache:
            engine = read_engine(self.engine)
            work.report("not needed: it was checked when it was built")
        else:
            quantized = "quantization_config" in self.values
            engine = check_engine(self.engine, self.build, self.plan.sizing, is_quantized_already=quantized)
            try_engine(self.engine, engine, self.machine.gpus, self._needs("build"), work.report)
            self.engine = self.engine_entry.keep(self.engine)
        work.facts = self._facts(work, engine)
        _link(self.engine, work.directory)

    def _facts(self, work: Work, engine: EngineConfig) -> EngineFacts:
        return EngineFacts(
            engine_kind="tensorrt_llm",
            library=Library(name="tensorrt_llm", version=engine.version),
            sm=self.machine.sm,
            world_size=engine.world_size,
            dtype=engine.pretrained.get("dtype"),
            quantization=engine.quantization(),
            max_batch_size=engine.build.get("max_batch_size"),
            max_input_len=engine.build.get("max_input_len"),
            max_seq_len=engine.build.get("max_seq_len"),
        )

    def place_tokenizer(self, work: Work) -> None:
        place_fast_tokenizer(work)
        place_generation_config(work)


def _is_on_hub(config: BuildConfig) -> bool:
    """Return True if the weights are downloaded later, when they are needed."""
    return config.model_path is None and config.model_tar_url is None


def _link(source: Path, target: Path) -> None:
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        destination = target / path.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        place(path, destination)
