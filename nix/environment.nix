# A Python environment of the files of a lock: a virtual environment, each wheel as it was published.
{
  runCommand,
  wheel,
  pythons,
  python311,
}:

{
  # Name of the lock in nix/locks.
  stack,
  # Files that are not needed, as patterns of paths in the environment.
  leaveOut ? [ ],
  # Names in site-packages that other names shall have, too: { tensorrt = "tensorrt_bindings"; }.
  aliases ? { },
  # Only device code for this GPU architecture stays, such as "86", and nothing for debuggers; null: all.
  sm ? null,
}:

let
  lock = builtins.fromJSON (builtins.readFile (./locks + "/${stack}.json"));
  python = pythons.${lock.python};
  isWheel = each: builtins.match ".*\\.whl" each.file != null;
  suffix = if sm == null then "" else "-${sm}";
  # Of the programs that work on the finished tree: they have no need of its own Python.
  anyPython = "${python311}/bin/python3.11";

  # The program alone: what is written about it is no reason to slim everything again.
  slimming = builtins.path {
    name = "slim";
    path = ./slim;
    filter = path: type: baseNameOf path == "slim" || builtins.match ".*\\.py" path != null;
  };
in
runCommand "cog-triton-${stack}${suffix}"
  {
    inherit leaveOut;
    wheels = map wheel (builtins.filter isWheel lock.files);
    archives = map wheel (builtins.filter (each: !isWheel each) lock.files);
    aliases = map (name: "${name}=${aliases.${name}}") (builtins.attrNames aliases);
    python = "${python}/bin/python${lock.python}";
    installWheels = ./build/install_wheels.py;
    slim = if sm == null then "" else "${anyPython} ${slimming} --sm ${sm} --drop-debug";
    passthru = {
      inherit lock;
    };
  }
  ''
    source ${./build/environment.sh}
  ''
