# What to develop with: nix develop
{
  lib,
  mkShell,
  stdenv,
  zlib,
  gnumake,
  jq,
  nixfmt-tree,
  pigz,
  python311,
  shellcheck,
  skopeo,
}:

mkShell {
  packages = [
    gnumake
    jq
    nixfmt-tree
    pigz
    python311
    shellcheck
    skopeo
  ];
  # `make setup` installs wheels, which look for these where most systems have them.
  shellHook = ''
    export LD_LIBRARY_PATH=${
      lib.makeLibraryPath [
        stdenv.cc.cc.lib
        zlib
      ]
    }''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  '';
}
