# The file that one entry of a lock names, fetched by its hash.
{ fetchPypi, fetchurl }:

{
  # Of a lock's `files`: file (name), sha256, and where it is not on PyPI: source.
  file,
  sha256,
  source ? null,
  ...
}:

let
  # name-version(-build)?-python-abi-platform.whl
  parts = builtins.match "([^-]+)-([^-]+(-[0-9][^-]*)?)-([^-]+)-([^-]+)-([^-]+)\\.whl" file;
  part = builtins.elemAt parts;

  fromPypi =
    if parts == null then
      throw "${file} is not the name of a wheel: renew the lock with `nix run .#lock`"
    else
      fetchPypi {
        format = "wheel";
        pname = part 0;
        version = part 1;
        python = part 3;
        dist = part 3;
        abi = part 4;
        platform = part 5;
        inherit sha256;
      };

  # The only places besides PyPI.
  places = {
    pytorch-cpu = "https://download.pytorch.org/whl/cpu";
    nvidia-wheels = "https://pypi.nvidia.com/tensorrt-llm";
    nvidia-tensorrt = "https://developer.nvidia.com/downloads/compute/machine-learning/tensorrt/10.7.0/tars";
  };

  fromPlace = fetchurl {
    # A store path can't be named for every character of a URL, nor a URL hold every one of a file's name.
    name = builtins.replaceStrings [ "%2B" ] [ "+" ] file;
    url = "${places.${source}}/${builtins.replaceStrings [ "+" ] [ "%2B" ] file}";
    inherit sha256;
  };
in
if source == null then
  fromPypi
else if places ? ${source} then
  fromPlace
else
  throw "${file} is to come from ${source}, which nix/wheel.nix does not know"
