# A check that an image's libraries will be found, from what the files themselves say they need.
{
  runCommand,
  binutils,
  python311,
}:

{
  # Of the image.
  name,
  # What is in the image: folders of libraries and programs.
  folders,
  # Patterns of libraries that need not be there: the driver's, and what only optional parts need.
  absent,
}:

runCommand "${name}-libraries-found"
  {
    inherit folders;
    nativeBuildInputs = [
      binutils
      python311
    ];
  }
  ''
    python3 ${./build/check_libraries.py} $folders --absent ${
      builtins.concatStringsSep " " (map (pattern: "'${pattern}'") absent)
    }
    touch $out
  ''
