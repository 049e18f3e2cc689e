# A Python environment of the wheels of a lock: a virtual environment, each wheel as it was published.
{
  runCommand,
  wheel,
  pythons,
}:

{
  # Name of the lock in nix/locks.
  stack,
  # Files that nothing here needs, as patterns of paths in the environment.
  leaveOut ? [ ],
  # Only device code for this GPU architecture stays, such as "86"; null: all of it.
  sm ? null,
}:

let
  lock = builtins.fromJSON (builtins.readFile (./locks + "/${stack}.json"));
  python = pythons.${lock.python};
  isWheel = each: builtins.match ".*\\.whl" each.file != null;
  wheels = builtins.filter isWheel lock.files;
  archives = builtins.filter (each: !isWheel each) lock.files;
in
runCommand "cog-triton-${stack}${if sm == null then "" else "-${sm}"}"
  {
    wheels = map wheel wheels;
    archives = map wheel archives;
    inherit leaveOut;
    # What slims the environment in place; nothing where all of it stays.
    slim = if sm == null then "" else "python3 ${./slim} --sm ${sm}";
    nativeBuildInputs = [ python ];
    passthru = {
      inherit lock python;
    };
  }
  ''
    installWheels=${./build/install_wheels.py}
    source ${./build/environment.sh}
  ''
