# What an image holds, as a CycloneDX document.
{
  runCommand,
  python311,
  created,
}:

{
  # Of the image.
  name,
  # Environments in it, as ./environment.nix makes them.
  environments,
  # All of its layers.
  layers,
}:

runCommand "${name}-sbom.json"
  {
    environments = map (each: "--environment ${./locks + "/${each.lock.stack}.json"}=${each}") environments;
    storePaths = map (layer: "--store-paths ${layer.closure}/store-paths") layers;
    nativeBuildInputs = [ python311 ];
  }
  ''
    python3 ${./build/sbom.py} --name ${name} --created ${created} $environments $storePaths > $out
  ''
