# nixpkgs' functions, as far as ours uses them.
let
  hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
in
rec {
  runCommand =
    name: attributes: script:
    let
      strange = builtins.filter (each: attributes ? ${each}) refused;
      inputs = attributes.nativeBuildInputs or [ ];
      environment = builtins.removeAttrs attributes known;
    in
    if strange != [ ] then
      throw "stand-in runCommand: it does not know ${toString strange}"
    else
      derivation (
        environment
        // {
          inherit name script;
          system = "x86_64-linux";
          builder = "/bin/bash";
          # As nixpkgs' setup script does.
          args = [
            "-c"
            "set -eu -o pipefail; eval \"$script\""
          ];
          PATH = builtins.concatStringsSep ":" (map (input: "${input}/bin") inputs ++ [ hostPath ]);
        }
      )
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

  # nixpkgs has it of any URL. Here a wheel comes by its name, from wherever this machine's pip finds it.
  fetchurl =
    {
      url,
      sha256,
      name ? baseNameOf url,
    }:
    derivation {
      inherit name url sha256;
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

  fetchPypi =
    {
      pname,
      version,
      format,
      dist,
      python,
      abi,
      platform,
      sha256,
    }:
    assert format == "wheel";
    fetchurl {
      # The place is nixpkgs' to know; the file's name is all that counts here.
      url = "pypi:/${dist}/${pname}-${version}-${python}-${abi}-${platform}.whl";
      inherit sha256;
    };

  closureInfo =
    { rootPaths }:
    runCommand "closure-info"
      {
        exportReferencesGraph = builtins.concatMap (path: [
          "closure-${baseNameOf path}"
          path
        ]) rootPaths;
      }
      ''
        mkdir $out
        cat closure-* | grep '^/nix/store/' | grep -v '\.drv$' | sort -u > $out/store-paths
      '';

  mkShell =
    {
      packages ? [ ],
      shellHook ? "",
    }:
    runCommand "shell" { inherit packages shellHook; } "echo $packages > $out";

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
    }:
    runCommand name
      {
        inherit packages install;
        libraries = map (each: "${each}/lib") libraries;
        loader = if loader == null then "" else "${loader}/lib/ld-linux-x86-64.so.2";
      }
      ''
        source ${./debian.sh}
      '';

  # Programs that only run while something is built or by hand: this machine's own.
  host =
    program:
    runCommand program { } ''
      mkdir -p $out/bin
      ln -s "$(command -v ${program})" $out/bin/${program}
    '';
}
