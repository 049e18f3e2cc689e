# The top layer: our code in /src, as a checkout has it, with the schema that Cog's server looks for.
{ runCommand, layer }:

{
  # "runner" or "builder".
  kind,
  # Layers below.
  below,
}:

let
  packages = {
    runner = {
      inherit (folders) errors engine runner;
      # The runner starts the builder for MODEL_ID. Its examples would be most of this layer.
      builder = builtins.path {
        name = "builder";
        path = ../builder;
        filter = path: _type: baseNameOf path != "examples";
      };
      triton_model_repo = ../triton_model_repo;
    };
    builder = {
      inherit (folders) errors engine builder;
    };
  };
  folders = {
    errors = ../errors;
    engine = ../engine;
    runner = ../runner;
    builder = ../builder;
  };
in
layer {
  name = "${kind} code";
  root =
    runCommand "${kind}-code"
      {
        inherit kind;
        folders = builtins.attrNames packages.${kind};
        # Each by itself, so that a change elsewhere in the checkout is no change here.
        paths = builtins.attrValues packages.${kind};
      }
      ''
        source ${./build/code.sh}
      '';
  inherit below;
  writable = [ "src" ];
}
