# A STAND-IN for nixpkgs, for machines that can reach neither it nor the Nix cache. It is NOT nixpkgs.
#
# It has just the functions and packages that our flake uses, with nixpkgs' names, arguments and shapes
# of results, made of Debian 12's packages and PyPI. What it does not know it refuses, so that ours asks
# for nothing unnoticed. It needs Nix without a sandbox, and Debian's patchelf, binutils, jq, pigz, skopeo,
# shellcheck, and a python3 with pip.
{
  outputs =
    { self }:
    {
      legacyPackages.x86_64-linux = import ./packages.nix;
    };
}
