"""Install wheels, unpatched, into a virtual environment at ``--out``.

Every file is checked against its wheel's RECORD. The result depends on the arguments only: no times and no
caches of this machine; byte code is compiled with the sources' hashes in a fixed order. Run with the
Python that the environment is for; standard library only.
"""

import argparse
import base64
import configparser
import csv
import fnmatch
import hashlib
import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

_ELF = b"\x7fELF"
_ELF_PROGRAM_HEADERS_AT = 32
_PT_INTERP = 3
_SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({call}())
"""


class WheelError(Exception):
    """A wheel that can't be installed; the text names it and the problem."""


class Installer:
    """Installs wheels into ``out``; two wheels with different files of one name are an error."""

    def __init__(self, out: Path, leave_out: Sequence[str] = ()) -> None:
        self.out = out
        self.version = ".".join(map(str, sys.version_info[:2]))
        self.site_packages = out / "lib" / f"python{self.version}" / "site-packages"
        self.left_out_bytes = 0
        self._leave_out = leave_out
        self._from: dict[Path, str] = {}

    def make_environment(self) -> None:
        self.site_packages.mkdir(parents=True)
        executable = Path(sys.base_prefix) / "bin" / f"python{self.version}"
        binaries = self.out / "bin"
        binaries.mkdir()
        for name in ("python", "python3", f"python{self.version}"):
            (binaries / name).symlink_to(executable)
        version = ".".join(map(str, sys.version_info[:3]))
        settings = f"home = {executable.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
        (self.out / "pyvenv.cfg").write_text(settings)

    def install(self, path: Path) -> list[Path]:
        """Install one wheel; return its Python files."""
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            folders = {name.split("/")[0] for name in names}
            infos = [folder for folder in folders if folder.endswith(".dist-info")]
            if len(infos) != 1:
                raise WheelError(f"{path.name}: not one .dist-info folder but {len(infos)}")
            info = infos[0]
            rows = csv.reader(wheel.read(f"{info}/RECORD").decode().splitlines())
            recorded = {row[0]: row[1] for row in rows if row}
            sources = []
            for member in wheel.infolist():
                if member.is_dir():
                    continue
                content = wheel.read(member)
                if member.filename != f"{info}/RECORD" and not _is_right(recorded, member.filename, content):
                    raise WheelError(f"{path.name}: {member.filename} is not the file that RECORD names")
                target = self._place(path, member, info, content)
                if (
                    target is not None
                    and target.suffix == ".py"
                    and target.is_relative_to(self.site_packages)
                ):
                    sources.append(target)
            if f"{info}/entry_points.txt" in names:
                self._write_scripts(path, wheel.read(f"{info}/entry_points.txt").decode())
        return sources

    def _place(self, wheel: Path, member: zipfile.ZipInfo, info: str, content: bytes) -> Path | None:
        target = self._target(member.filename, info)
        if not target.is_relative_to(self.out):
            raise WheelError(f"{wheel.name}: {member.filename} would lie outside the environment")
        inside = target.relative_to(self.out).as_posix()
        if any(fnmatch.fnmatchcase(inside, pattern) for pattern in self._leave_out):
            self.left_out_bytes += len(content)
            return None
        is_program = bool(member.external_attr >> 16 & stat.S_IXUSR) or _is_elf_program(content)
        if target.parent == self.out / "bin":
            content, is_program = self._with_python(content), True
        self._write(wheel.name, target, content, is_program)
        return target

    def _target(self, name: str, info: str) -> Path:
        """Return the path of a member: in site-packages, or as the wheel's ``.data`` folder says."""
        parts = PurePosixPath(name).parts
        if ".." in parts or name.startswith("/"):
            raise WheelError(f"{name} is no name for a member of a wheel")
        if parts[0] != info.replace(".dist-info", ".data"):
            return self.site_packages.joinpath(*parts)
        distribution = info.split("-")[0]
        folders = {
            "purelib": self.site_packages,
            "platlib": self.site_packages,
            "scripts": self.out / "bin",
            "data": self.out,
            "headers": self.out / "include" / "site" / f"python{self.version}" / distribution,
        }
        if parts[1] not in folders:
            raise WheelError(f"{name}: no such kind of data")
        return folders[parts[1]].joinpath(*parts[2:])

    def _write(self, wheel: str, target: Path, content: bytes, is_program: bool) -> None:
        if target in self._from:
            if target.read_bytes() != content:
                inside = target.relative_to(self.out)
                raise WheelError(f"{wheel} and {self._from[target]} both have {inside}, and differ")
            return
        self._from[target] = wheel
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if is_program else 0o644)

    def _with_python(self, script: bytes) -> bytes:
        first, newline, rest = script.partition(b"\n")
        if first.startswith(b"#!python"):
            return f"#!{self.out}/bin/python".encode() + newline + rest
        return script

    def _write_scripts(self, wheel: Path, entry_points: str) -> None:
        parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        parser.read_string(entry_points)
        for section in ("console_scripts", "gui_scripts"):
            for script, entry in parser.items(section) if parser.has_section(section) else ():
                module, _, call = entry.split("[")[0].strip().partition(":")
                text = _SCRIPT.format(
                    python=self.out / "bin" / "python", module=module, name=call.split(".")[0], call=call
                )
                self._write(wheel.name, self.out / "bin" / script, text.encode(), is_program=True)


def compile_sources(groups: Sequence[Sequence[Path]]) -> None:
    """Compile every group of files in a process of its own: byte code depends on what was compiled before.

    Files that are no Python of this version (templates, tests of syntax errors) stay as they are.
    """

    def compile_group(group: Sequence[Path]) -> None:
        command = [sys.executable, "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash"]
        names = "".join(f"{path}\n" for path in sorted(group))
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run([*command, "-i", "-"], input=names, text=True, env=environment, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_group, filter(None, groups)))


def _is_right(recorded: dict[str, str], name: str, content: bytes) -> bool:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    # NOTE: signatures may not be in RECORD, because they sign it.
    return recorded.get(name) == f"sha256={digest}" or name.endswith((".dist-info/RECORD.jws", "RECORD.p7s"))


def _is_elf_program(content: bytes) -> bool:
    """Tell whether a file is a 64-bit ELF program: some wheels do not mark theirs as executable."""
    if content[:4] != _ELF or len(content) < 64:
        return False
    start = int.from_bytes(content[_ELF_PROGRAM_HEADERS_AT : _ELF_PROGRAM_HEADERS_AT + 8], "little")
    size = int.from_bytes(content[54:56], "little")
    count = int.from_bytes(content[56:58], "little")
    headers = range(start, start + size * count, size) if size else ()
    return any(int.from_bytes(content[at : at + 4], "little") == _PT_INTERP for at in headers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the environment to make")
    parser.add_argument("--wheels", type=Path, required=True, help="a file that names the wheels")
    parser.add_argument("--leave-out", action="append", default=[], help="pattern of files not to install")
    options = parser.parse_args()
    installer = Installer(options.out, options.leave_out)
    installer.make_environment()
    wheels = map(Path, options.wheels.read_text().split())
    try:
        groups = [installer.install(wheel) for wheel in wheels]
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    compile_sources(groups)
    print(f"{len(groups)} wheels installed; {installer.left_out_bytes / 1e6:,.1f} MB of them left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
