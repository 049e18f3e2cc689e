# An image of layers, as the program that loads, pushes, saves, shows and streams it.
{
  lib,
  runCommand,
  writeText,
  python311,
  bash,
  coreutils,
  gnutar,
  skopeo,
  jq,
}:

{
  # As users of a registry read it.
  name,
  # From the bottom to the top: what changes least comes first.
  layers,
  # What containers of it get: Env, Entrypoint, User, ... as in the OCI image configuration.
  config,
  # Time in RFC 3339.
  created,
  # What it holds, as a CycloneDX document.
  contents,
  # Checks without which it is not built.
  requires ? [ ],
}:

let
  layout =
    runCommand "${name}-layout"
      {
        inherit layers requires;
        nativeBuildInputs = [ python311 ];
      }
      ''
        python3 ${./build/image.py} --name ${name} --created ${created} \
          --config ${writeText "${name}-config.json" (builtins.toJSON config)} --out $out $layers
      '';
  path = lib.makeBinPath [
    coreutils
    gnutar
    jq
    skopeo
  ];
in
runCommand name
  {
    inherit layout contents;
    passthru = {
      inherit layers config layout;
    };
  }
  ''
    {
      printf '#!%s\nlayout=%s\ncontents=%s\nPATH=%s:$PATH\n' ${bash}/bin/bash "$layout" "$contents" ${path}
      cat ${./build/result.sh}
    } > $out
    chmod +x $out
  ''
