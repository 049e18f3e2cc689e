# nixpkgs' functions, as far as ours uses them.
let
  hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  binFolders = packages: builtins.concatStringsSep ":" (map (package: "${package}/bin") packages);

  # Only these mean something here; others would do something in nixpkgs that is not done here.
  known = [
    "nativeBuildInputs"
    "passthru"
  ];
  refused = [
    "buildInputs"
    "propagatedBuildInputs"
    "depsBuildBuild"
    "outputs"
    "meta"
    "src"
    "phases"
    "outputHash"
    "__structuredAttrs"
  ];

  command =
    name: initialPath: attributes: buildCommand:
    derivation (
      attributes
      // {
        inherit name initialPath buildCommand;
        system = "x86_64-linux";
        builder = "/bin/bash";
        args = [ ./setup.sh ];
      }
    );
  # A command of this machine's own programs, which makes packages.
  hostCommand = name: command name hostPath;

  # What every command in nixpkgs finds without asking for it: programs of these packages, and no others.
  stdenvTools = hostCommand "stdenv-tools" {
    packages = "bash binutils bzip2 coreutils diffutils file findutils gawk grep gzip make patch patchelf sed tar xz-utils";
  } ''
    mkdir -p $out/bin
    for path in $(for package in $packages; do dpkg -L $package 2> /dev/null || true; done); do
        case "$path" in
            /bin/* | /usr/bin/*) ln -sf "$path" -t $out/bin ;;
        esac
    done
  '';
in
rec {
  runCommand =
    name: attributes: script:
    let
      strange = builtins.filter (each: attributes ? ${each}) refused;
      inputs = attributes.nativeBuildInputs or [ ];
    in
    if strange != [ ] then
      throw "stand-in runCommand: it does not know ${toString strange}"
    else
      command name (binFolders (inputs ++ [ stdenvTools ])) (builtins.removeAttrs attributes known) script
      // attributes.passthru or { };

  writeText =
    name: text:
    runCommand name { inherit text; } ''
      printf '%s' "$text" > $out
    '';

  writeShellScriptBin =
    name: text:
    runCommand name { inherit text; } ''
      mkdir -p $out/bin
      printf '#!/bin/bash\n%s' "$text" > $out/bin/${name}
      chmod +x $out/bin/${name}
    '';

  # nixpkgs has it of any URL. Here a wheel comes from where it is on PyPI, else by its name from wherever this
  # machine's pip finds it.
  fetchurl =
    {
      name,
      urls,
      sha256,
    }:
    derivation {
      inherit name urls sha256;
      system = "x86_64-linux";
      builder = "/bin/bash";
      args = [ ./fetch-wheel.sh ];
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = sha256;
      impureEnvVars = [
        "HOME"
        "PATH"
        "PIP_CERT"
        "PIP_CONFIG_FILE"
        "PIP_EXTRA_INDEX_URL"
        "PIP_FIND_LINKS"
        "PIP_INDEX_URL"
        "TORCH_CPU_INDEX"
        "http_proxy"
        "https_proxy"
        "no_proxy"
      ];
    };

  # With structured attributes, as nixpkgs has it.
  closureInfo =
    { rootPaths }:
    command "closure-info" (binFolders [ stdenvTools (host "jq") ]) {
      __structuredAttrs = true;
      exportReferencesGraph.closure = rootPaths;
    } ''
      mkdir $out
      jq -r '.closure[].path' < "$NIX_ATTRS_JSON_FILE" > $out/store-paths
    '';

  mkShell =
    {
      packages ? [ ],
      shellHook ? "",
    }:
    runCommand "shell" { inherit packages shellHook; } "echo $packages > $out";

  lib = {
    makeBinPath = binFolders;
    makeLibraryPath = packages: builtins.concatStringsSep ":" (map (each: "${each}/lib") packages);
  };

  # Programs of Debian's packages, run with the libraries of this stand-in: loader and paths are set to them.
  debian =
    {
      name,
      # Debian's packages.
      packages,
      # Other packages of the stand-in whose libraries they need.
      libraries ? [ ],
      # What else there is to do, in a folder with the unpacked files; bin and lib are in $out already.
      install ? "",
      loader ? null,
      outputs ? [ "out" ],
    }:
    hostCommand name
      {
        inherit packages install outputs;
        libraries = map (each: "${each}/lib") libraries;
        loader = if loader == null then "" else "${loader}/lib/ld-linux-x86-64.so.2";
      }
      ''
        source ${./debian.sh}
      '';

  # Programs that only run while something is built or by hand: this machine's own.
  host = program: hostOutputs program [ "out" ];

  # The same of a package with several outputs: programs are in bin, or where there is none, in the first.
  hostOutputs =
    program: outputs:
    hostCommand program { inherit outputs; } ''
      for output in $outputs; do
          mkdir -p "''${!output}"
      done
      mkdir ''${bin:-$out}/bin
      ln -s "$(command -v ${program})" ''${bin:-$out}/bin
    '';
}
