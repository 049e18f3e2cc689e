"""Run the file system of a runner image for vLLM on a GPU machine that has neither Docker nor a network.

    image.py unpack PARTS ROOT      # PARTS: folder with img.*, img.sha256, code.tar.gz and config.json
    image.py enter [--volume FROM:TO[:ro]] [--env NAME=VALUE] [--writable] ROOT [COMMAND ...]
    image.py prove ROOT --work FOLDER --out FILE [--gguf FILE]

The image is entered as Docker and NVIDIA's container toolkit do it: its user, variables and entry point, a
root file system that can't be written, tmpfs at /tmp and /dev/shm, and of the host only devices and the
driver's libraries. ``prove`` serves a model of 1.1 B parameters whose every token is known, and a model from
a GGUF file. Needs root, and pyarrow to unpack; else the standard library alone. It is one
file, because it runs before the code that it unpacks is there.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu")
_DRIVER = "cuda|cudadebugger|nvidia-(ml|cfg|gpucomp|ptxjitcompiler|nvvm|nvvm70|allocator|pkcs11.*)"
_DRIVER_FILE = re.compile(rf"lib({_DRIVER})\.so(\.[\d.]+)?")
"""What NVIDIA's container toolkit mounts for the capabilities ``compute`` and ``utility``."""
_MODEL_FOLDER = "src/triton_model_repo/tensorrt_llm/1"
_MAPPED = """
import os, re
from pathlib import Path
found = set()
for maps in Path("/proc").glob("[0-9]*/maps"):
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        continue
    found.update(line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6)
print("\\n".join(sorted(found)))
"""
_LIBRARIES_OF_DRIVER = re.compile(rf"/usr/lib64/{_DRIVER_FILE.pattern}")
_OF_IMAGE = re.compile(r"/(nix/store|src|opt|bin|lib64)/.*")
_MADE_BY_IMAGE = re.compile(r"/(tmp|dev/shm|home/cog)/.*|/memfd:.*|/SYSV.*|\[.*\]|anon_inode:.*|socket:.*")
_DEVICE = re.compile(r"/dev/(nvidia.*|zero|null).*")
_TOKENS = 96
_STREAMS = 64
_QUESTION = "What is the capital of France? Answer in one sentence."


def unpack(parts: Path, root: Path) -> None:
    """Unpack the parts and the layer of our code into ``root``; what is not of the image goes beside it."""
    import pyarrow

    subprocess.run(["sha256sum", "--check", "--quiet", "img.sha256"], cwd=parts, check=True)
    staging = root.parent / f"{root.name}.unpacked"
    staging.mkdir(parents=True)
    pieces = sorted(path for path in parts.glob("img.*") if path.suffix[1:].isdigit())
    extract = ["tar", "--extract", "--numeric-owner", "--preserve-permissions"]
    with (
        subprocess.Popen(["cat", *pieces], stdout=subprocess.PIPE) as joined,
        subprocess.Popen([*extract, "--directory", staging], stdin=subprocess.PIPE) as tar,
    ):
        assert tar.stdin is not None
        with tar.stdin as out, pyarrow.input_stream(joined.stdout, compression="zstd") as stream:
            while block := stream.read(1 << 22):
                out.write(block)
    assert tar.returncode == 0, "tar failed"
    (staging / "image-root").rename(root)
    code = ["--gzip", "--file", parts / "code.tar.gz", "--directory", root]
    subprocess.run([*extract, *code], check=True)
    shutil.copy(parts / "config.json", root.parent / f"{root.name}.json")


def entering(
    root: Path,
    volumes: Sequence[str] = (),
    variables: Sequence[str] = (),
    command: Sequence[str] = (),
    *,
    is_writable: bool = False,
) -> list[str]:
    """Return a command line that enters the image in namespaces of its own; without ``command`` it serves."""
    config = json.loads((root.parent / f"{root.name}.json").read_text())
    steps = [f"mount --bind {root} {root}", f"cd {root}"]

    def at(place: str, options: str, *, is_folder: bool = True) -> None:
        target = root / place.lstrip("/")
        assert target.parent.resolve().is_relative_to(root), f"{place} leads out of {root}"
        if not target.exists() and not target.is_symlink():
            (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
            if not is_folder:
                target.touch()
        steps.append(f"mount {options} {shlex.quote(str(target))}")

    at("proc", "-t proc proc")
    at("sys", "--rbind -o ro /sys")
    at("dev", "-t tmpfs -o mode=755,dev dev")
    steps += ["mkdir -p dev/shm dev/pts", "ln -s /proc/self/fd dev/fd"]
    steps += [
        f"ln -s /proc/self/fd/{number} dev/std{name}" for number, name in enumerate(("in", "out", "err"))
    ]
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
    for device in (*devices, *(str(each) for each in Path("/dev").glob("nvidia*") if each.is_char_device())):
        steps.append(f"touch .{device} && mount --bind {device} .{device}")
    steps += ["mount -t tmpfs -o mode=1777,size=1g shm dev/shm", "mount -t tmpfs -o mode=1777 tmp tmp"]
    for path in _driver_files():
        at(f"/usr/lib64/{path.name}", f"--bind -o ro {path.resolve()}", is_folder=False)
    if program := shutil.which("nvidia-smi", path=f"/usr/local/nvidia/bin:{os.environ['PATH']}"):
        at("/usr/bin/nvidia-smi", f"--bind -o ro {program}", is_folder=False)
    for path in map(Path, ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")):  # Docker's, too.
        if path.exists():
            at(str(path), f"--bind -o ro {path}", is_folder=False)
    for volume in volumes:
        source, target, *option = volume.split(":")
        at(target, f"--bind {'-o ro ' if option else ''}{source}", is_folder=Path(source).is_dir())
    if not is_writable:
        steps.append(f"mount -o remount,bind,ro {root}")
    environment = [*config["Env"], *variables]
    program = [*config["Entrypoint"], *(command or config["Cmd"])]
    inside = ["/bin/env", "-i", f"--chdir={config['WorkingDir']}", *environment, *program]
    chroot = ["chroot", f"--userspec={config['User']}", str(root), *inside]
    script = "\n".join(["set -e", *steps, f"exec {shlex.join(chroot)}"])
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]


def _driver_files() -> list[Path]:
    for folder in map(Path, _DRIVER_FOLDERS):
        if (folder / "libcuda.so.1").exists():
            return [each for each in sorted(folder.iterdir()) if _DRIVER_FILE.fullmatch(each.name)]
    return []


class Report:
    """Rows of a Markdown table, each written as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_right = True
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("| what | outcome | after, s |\n| --- | --- | ---: |\n")
        self._start_s = time.monotonic()

    def add(self, what: str, outcome: object) -> None:
        line = f"| {what} | {str(outcome)[:2000]} | {time.monotonic() - self._start_s:.1f} |".replace(
            "\n", " "
        )
        print(line, flush=True)
        with self._path.open("a") as file:
            file.write(line + "\n")

    def step(self, what: str, work: Callable[[], object]) -> bool:
        """Run ``work`` and add what it returns, or its error; the next step follows in any case."""
        try:
            self.add(what, work())
        except Exception as error:  # noqa: BLE001 - the others are still run
            self.is_right = False
            self.add(what, f"**FAILED** {type(error).__name__}: {error}")
            return False
        return True


class Container:
    """The image's own command, which serves on the ports of this machine."""

    def __init__(self, root: Path, volumes: Sequence[str], variables: Sequence[str], log: Path) -> None:
        self.log = log
        self._started_s = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                entering(root, volumes, variables), stdout=output, stderr=output, start_new_session=True
            )

    def wait_ready(self, timeout_s: float) -> str:
        """Wait until Cog says READY and return the seconds until then, and until a first token."""
        while (status := self._status()) != "READY":
            waited_s = time.monotonic() - self._started_s
            if self._process.poll() is not None or waited_s > timeout_s or "FAILED" in status:
                end = self.log.read_text(errors="replace")[-1500:]
                raise TimeoutError(f"{status or 'no answer'} after {waited_s:.0f} s: {end}")
            time.sleep(0.05)
        ready_s = time.monotonic() - self._started_s
        predicted("The whale", 1)
        return f"READY after {ready_s:.1f} s, first token after {time.monotonic() - self._started_s:.1f} s"

    @staticmethod
    def _status() -> str:
        try:
            with urllib.request.urlopen("http://127.0.0.1:5000/health-check", timeout=5) as answer:
                return str(json.load(answer)["status"])
        except (OSError, ValueError):
            return ""

    def inside(self, *command: str) -> str:
        """Run a command as root in the container's namespaces."""
        enter = ["nsenter", f"--target={self._first()}", "--mount", "--pid", "--root", "--wd"]
        variables = Path(f"/proc/{self._first()}/environ").read_bytes().rstrip(b"\0").decode().split("\0")
        run = subprocess.run(
            [*enter, "/bin/env", "-i", *variables, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
        return run.stdout.decode(errors="replace").strip()

    def _first(self) -> int:
        return int(
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()[0]
        )

    def stop(self) -> str:
        """Send SIGTERM as `docker stop` does, and return the exit status."""
        started_s = time.monotonic()
        if self._process.poll() is None:
            os.kill(self._first(), signal.SIGTERM)
        try:
            status = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return f"exit status {status} after {time.monotonic() - started_s:.1f} s"


@contextmanager
def serving(
    report: Report, name: str, root: Path, volumes: Sequence[str], variables: Sequence[str], log: Path
) -> Iterator[Container | None]:
    """Serve, and stop at the end; gives None if it did not start."""
    container = Container(root, volumes, variables, log)
    try:
        is_ready = report.step(f"{name}: start", lambda: container.wait_ready(150))
        yield container if is_ready else None
    finally:
        report.step(f"{name}: SIGTERM", container.stop)


def _post(url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of a stream of events, or the one document of an answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{url}: {error.code} {error.read().decode()[:300]}") from error
    if not text.startswith(("data:", "event:", "id:", ":")):
        return [json.loads(text)]
    data = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
    return [json.loads(each) for each in data if each and each != "[DONE]"]


_API = "http://127.0.0.1:9000"


def chat(question: str, tokens: int) -> str:
    messages = [{"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}
    events = _post(f"{_API}/v1/chat/completions", body)
    choices = (choice for event in events for choice in event["choices"])
    return "".join(each["delta"].get("content") or "" for each in choices)


def responses(question: str, tokens: int) -> str:
    body = {"input": question, "max_output_tokens": tokens, "temperature": 0, "stream": True}
    events = _post(f"{_API}/v1/responses", {**body, "model": _model()})
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


def messages(question: str, tokens: int) -> str:
    body = {"max_tokens": tokens, "temperature": 0, "stream": True, "model": _model()}
    events = _post(f"{_API}/v1/messages", {**body, "messages": [{"role": "user", "content": question}]})
    deltas = (each["delta"] for each in events if each["type"] == "content_block_delta")
    return "".join(each.get("text", "") for each in deltas)


_CHATS = {"chat completions": chat, "Responses": responses, "Messages": messages}


def completed(ids: list[int], tokens: int) -> str:
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    events = _post(f"{_API}/v1/completions", body)
    return "".join(choice["text"] for event in events for choice in event["choices"])


def predicted(prompt: str, tokens: int) -> str:
    """Return Cog's prediction."""
    inputs = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    (answer,) = _post("http://127.0.0.1:5000/predictions", {"input": inputs})
    assert answer["status"] == "succeeded", answer
    return "".join(answer["output"])


def slot(ids: list[int], tokens: int) -> list[int]:
    """Return the tokens of the slot, through the front's port."""
    body = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": tokens, "runtime_top_k": 1}
    events = _post(
        "http://127.0.0.1:8000/v2/models/tensorrt_llm/generate_stream", {**body, "streaming": True}
    )
    found = (each["output_ids"] for each in events)
    return [each for ids in found for each in (ids if isinstance(ids, list) else [ids])]


def _model() -> str:
    with urllib.request.urlopen(f"{_API}/v1/models", timeout=30) as answer:
        return str(json.load(answer)["data"][0]["id"])


def _ids(**prompt: object) -> list[int]:
    (answer,) = _post(f"{_API}/tokenize", prompt)
    found: list[int] = answer["tokens"]
    return found


def _text(ids: list[int]) -> str:
    (answer,) = _post(f"{_API}/detokenize", {"tokens": ids})
    return str(answer["prompt"])


def _after(ids: list[int], tokens: int = _TOKENS) -> list[int]:
    """Return the known model's tokens after a prompt."""
    return [*range(ids[-1] + 1, ids[-1] + 1 + tokens)]


def check_known(report: Report) -> None:
    """Ask for known tokens by every API."""
    question = "The whale"
    for name, ask in _CHATS.items():

        def exact(ask: Callable[[str, int], str] = ask) -> str:
            known = _text(_after(_ids(messages=[{"role": "user", "content": question}])))
            found = ask(question, _TOKENS)
            assert found == known, f"{found!r} instead of {known!r}"
            return f"{_TOKENS} tokens exact"

        report.step(f"1B: {name}", exact)

    def streams() -> str:
        prompts = [[300 + number * 7, *range(400 + number, 500 + number)] for number in range(_STREAMS)]
        with ThreadPoolExecutor(_STREAMS) as threads:
            found = list(threads.map(lambda ids: completed(ids, _TOKENS), prompts))
        exact = sum(text == _text(_after(ids)) for text, ids in zip(found, prompts, strict=True))
        assert exact == _STREAMS, f"{exact} of {_STREAMS} exact"
        return f"{exact} of {_STREAMS} streams exact"

    def prediction() -> str:
        known, found = _text(_after(_ids(prompt=question))), predicted(question, _TOKENS)
        assert found == known, f"{found!r} instead of {known!r}"
        return f"{_TOKENS} tokens exact"

    def slot_ids() -> str:
        found = slot([400, 401], _TOKENS)
        assert found == _after([401]), found
        return f"{_TOKENS} tokens exact"

    report.step(f"1B: completions, {_STREAMS} at once", streams)
    report.step("1B: Cog, /predictions", prediction)
    report.step("1B: slot at port 8000", slot_ids)


def check_origin(container: Container) -> str:
    """Check that processes mapped only files of the image, the driver's libraries and their own files."""
    paths = container.inside("/opt/serving/bin/python", "-c", _MAPPED).splitlines()
    kinds = (_LIBRARIES_OF_DRIVER, _OF_IMAGE, _MADE_BY_IMAGE, _DEVICE)
    counts = [sum(kind.fullmatch(path) is not None for path in paths) for kind in kinds]
    strange = [path for path in paths if not any(kind.fullmatch(path) for kind in kinds)]
    assert not strange, strange
    assert counts[1] > 100, paths
    driver = sorted({path[11:] for path in paths if _LIBRARIES_OF_DRIVER.fullmatch(path)})
    return f"mapped: {counts[1]} files of the image; of the driver {', '.join(driver)}; else its own files"


def check_read_only(container: Container) -> str:
    found = container.inside(
        "/bin/sh", "-c", "touch /src/x /opt/x /home/cog/x /etc/x 2>&1; id -u; cat /proc/1/status"
    )
    assert found.count("Read-only file system") == 4, found
    assert re.search(r"^Uid:\s+1000\s", found, re.MULTILINE), found
    return "root file system can't be written; user 1000"


def prove(root: Path, work: Path, gguf: Path | None, report: Report) -> None:
    volumes = {name: work / name for name in ("models", "volume", "volume-gguf")}
    for folder in volumes.values():
        folder.mkdir(parents=True)
        os.chown(folder, 1000, 1000)
    repository = f"{REPOSITORY}:/repo:ro"
    at_repository = ["PYTHONPATH=/repo", "HOME=/tmp", "COG_TRITON_CACHE=/tmp/cache"]

    def within(python: str, *arguments: str) -> str:
        command = [f"/opt/{python}/bin/python", *arguments]
        line = entering(root, [repository, f"{volumes['models']}:/models"], at_repository, command)
        run = subprocess.run(line, capture_output=True, text=True, timeout=150)
        assert run.returncode == 0, run.stdout[-500:] + run.stderr[-1500:]
        return run.stdout.strip().rpartition("\n")[2]

    report.step("nvidia-smi", lambda: within("serving", "-c", _SMI))
    report.step("1B: model", lambda: within("engine", "-m", "tests.standins.known_model", "/models/1b", "1b"))
    report.step("1B: engine", lambda: within("serving", "-c", _BUILD))
    engine = f"{volumes['models']}/engine:/{_MODEL_FOLDER}:ro"
    kept = f"{volumes['volume']}:/home/cog/.cache"
    for number, start in enumerate(("empty cache", "second start", "third start")):
        log = work / f"1b-{number}.log"
        with serving(report, f"1B, {start}", root, [engine, kept], [], log) as container:
            if container is None:
                continue
            check_known(report)
            if number == 0:
                report.step("read-only", lambda: check_read_only(container))
                report.step("origin", lambda: check_origin(container))
                report.step("mounts", lambda: container.inside("/bin/cat", "/proc/1/mounts"))
    if gguf is None:
        return
    model, kept = f"{gguf}:/models/{gguf.name}:ro", f"{volumes['volume-gguf']}:/home/cog/.cache"
    for number, start in enumerate(("empty cache", "second start")):
        log = work / f"gguf-{number}.log"
        variables = [f"MODEL_ID=/models/{gguf.name}"]
        with serving(report, f"{gguf.stem}, {start}", root, [model, kept], variables, log) as container:
            if container is not None:
                report.step(f"{gguf.stem}: three APIs", check_chats)


def check_chats() -> str:
    """Ask a real model the same by three APIs."""
    texts = {name: ask(_QUESTION, 40) for name, ask in _CHATS.items()}
    assert len(set(texts.values())) == 1, texts
    (text,) = set(texts.values())
    assert "Paris" in text, text
    return f"the same by all: {text!r}"


_SMI = "import subprocess; print(subprocess.check_output(['nvidia-smi', '-L'], text=True))"
_BUILD = """
import shutil
from pathlib import Path
from perf.peers.engine import built_engine
arguments = {"dtype": "bfloat16", "max_model_len": 2048, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
shutil.move(built_engine(Path("/models"), Path("/models/1b"), arguments), "/models/engine")
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    unpacking = commands.add_parser("unpack", help="unpack an image's parts")
    unpacking.add_argument(
        "parts", type=Path, help="folder with img.*, img.sha256, code.tar.gz and config.json"
    )
    unpacking.add_argument("root", type=Path, help="folder to make, with the image's file system")
    entry = commands.add_parser("enter", help="run a command in the image, or its own")
    entry.add_argument(
        "--volume", action="append", default=[], metavar="FROM:TO[:ro]", help="a folder of the host"
    )
    entry.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable")
    entry.add_argument("--writable", action="store_true", help="a root file system that can be written")
    entry.add_argument("root", type=Path, help="an unpacked image")
    entry.add_argument("program", nargs=argparse.REMAINDER, metavar="COMMAND")
    proof = commands.add_parser("prove", help="serve two models, and compare their answers")
    proof.add_argument("root", type=Path, help="an unpacked image")
    proof.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for models, cache and logs"
    )
    proof.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="what was seen, as a Markdown table"
    )
    proof.add_argument(
        "--gguf", type=Path, metavar="FILE", help="a model's GGUF file, which is served as well"
    )
    options = parser.parse_args()
    root = options.root.resolve()
    if options.command == "unpack":
        started_s = time.monotonic()
        unpack(options.parts, root)
        print(f"unpacked in {time.monotonic() - started_s:.1f} s")
        return 0
    if options.command == "enter":
        line = entering(root, options.volume, options.env, options.program, is_writable=options.writable)
        os.execvp(line[0], line)
    report = Report(options.out)
    prove(root, options.work.resolve(), options.gguf and options.gguf.resolve(), report)
    return int(not report.is_right)


if __name__ == "__main__":
    sys.exit(main())
