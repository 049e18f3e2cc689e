# The file that one entry of a lock names, fetched by its hash.
{ fetchurl }:

{
  # Of a lock's `files`: file (name), sha256; and blake2b, or where it is not on PyPI: source.
  file,
  sha256,
  blake2b ? null,
  source ? null,
  ...
}:

let
  pypi = "https://files.pythonhosted.org/packages";
  # name-version(-build)?-python-abi-platform.whl
  parts = builtins.match "([^-]+)-[^-]+(-[0-9][^-]*)?-([^-]+)-[^-]+-[^-]+\\.whl" file;
  project = builtins.head parts;
  pythonTag = builtins.elemAt parts 2;
  part = start: length: builtins.substring start length blake2b;

  fromPypi =
    if parts == null || blake2b == null then
      throw "${file} is not a wheel with a BLAKE2b-256: renew the lock with `nix run .#lock`"
    else
      [
        "${pypi}/${part 0 2}/${part 2 2}/${part 4 60}/${file}"
        # NOTE: this older path leads to the file only where the uploader declared the same Python.
        "${pypi}/${pythonTag}/${builtins.substring 0 1 project}/${project}/${file}"
      ];

  # The only places besides PyPI.
  places = {
    pytorch-cpu = "https://download.pytorch.org/whl/cpu";
    nvidia-wheels = "https://pypi.nvidia.com/tensorrt-llm";
    nvidia-tensorrt = "https://developer.nvidia.com/downloads/compute/machine-learning/tensorrt/10.7.0/tars";
  };

  fromPlace = [ "${places.${source}}/${builtins.replaceStrings [ "+" ] [ "%2B" ] file}" ];
in
fetchurl {
  name = file;
  urls =
    if source == null then
      fromPypi
    else if places ? ${source} then
      fromPlace
    else
      throw "${file} is to come from ${source}, which nix/wheel.nix does not know";
  inherit sha256;
}
