# One layer of an image, compressed: what a folder holds, at /, and all that it refers to in the Nix store.
{
  runCommand,
  closureInfo,
  pigz,
}:

{
  # What it holds, in words: "engine environment".
  name,
  # A folder whose content lies at /. Its links are what brings store paths into the image.
  root,
  # Layers below, which already have their part of the store.
  below ? [ ],
  # Folders of root that every user may write into, such as "tmp".
  writable ? [ ],
}:

let
  closure = closureInfo { rootPaths = [ root ]; };
in
runCommand "layer-${builtins.replaceStrings [ " " ] [ "-" ] name}"
  {
    layerName = name;
    inherit root writable;
    closure = "${closure}/store-paths";
    below = map (layer: "${layer.closure}/store-paths") below;
    nativeBuildInputs = [ pigz ];
    passthru = {
      inherit closure root;
    };
  }
  ''
    source ${./build/layer.sh}
  ''
