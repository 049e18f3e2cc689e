# The root file system below everything: what manylinux wheels expect of a system, a user, a place to write.
{
  runCommand,
  layer,
  bash,
  cacert,
  coreutils,
  glibc,
  python311,
  stdenv,
  tini,
  zlib,
}:

{
  # Packages of nixpkgs whose libraries, and whose programs, are to be found besides.
  libraries ? [ ],
  programs ? [ ],
}:

layer {
  name = "base";
  root =
    runCommand "base"
      {
        # NOTE: not glibc's: its loader finds them beside itself, and a program that a container runtime brings with
        # its own loader, such as nvidia-smi of NixOS, must not meet them.
        libraries = map (package: "${package}/lib") (
          [
            stdenv.cc.cc.lib
            zlib
          ]
          ++ libraries
        );
        programs = map (package: "${package}/bin") (
          [
            bash
            coreutils
            tini
          ]
          ++ programs
        );
        certificates = "${cacert}/etc/ssl/certs/ca-bundle.crt";
        loader = "${glibc}/lib/ld-linux-x86-64.so.2";
        python = python311;
      }
      ''
        source ${./build/base.sh}
      '';
  writable = [
    "home/cog"
    "home/cog/.cache"
    "tmp"
    "var/tmp"
  ];
}
