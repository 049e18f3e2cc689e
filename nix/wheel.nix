# The file that one entry of a lock names, fetched by its hash.
{ fetchurl }:

{
  # Of a lock's `files`: version, file (name), sha256; and blake2b, or where it is not on PyPI: source.
  version,
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
    pytorch-cu130 = "https://download.pytorch.org/whl/cu130";
    nvidia-wheels = "https://pypi.nvidia.com/tensorrt-llm";
    nvidia-tensorrt = "https://developer.nvidia.com/downloads/compute/machine-learning/tensorrt/${release}/tars";
  };

  # 10.7.0 of 10.7.0.23
  release = builtins.concatStringsSep "." (builtins.match "([0-9]+)\\.([0-9]+)\\.([0-9]+).*" version);

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
