# What an image says of itself: the names of the OCI image specification, Cog's, and ours.
{ revision, created }:

{
  # Of the image.
  name,
  # "runner" or "builder".
  kind,
  # Whether it is for NVIDIA GPUs.
  gpu,
  # The one GPU architecture it is for, or null.
  sm,
  # The locks of its environments.
  engineLock,
  servingLock,
}:

let
  project = (builtins.fromTOML (builtins.readFile ../pyproject.toml)).project;

  # "vllm 0.33.0": the first of these packages that the lock has.
  versionOf =
    lock: packages:
    let
      versions = builtins.listToAttrs (
        map (file: {
          inherit (file) name;
          value = "${file.name} ${file.version}";
        }) lock.files
      );
    in
    versions.${builtins.head (builtins.filter (package: versions ? ${package}) packages)};
  ours = {
    inherit kind;
    engine = versionOf engineLock [
      "tensorrt-llm"
      "vllm"
      "transformers"
    ];
    torch = versionOf engineLock [ "torch" ];
    triton = versionOf servingLock [ "nvidia-pytriton" ];
    python = "${servingLock.python}, engine ${engineLock.python}";
  }
  // (if sm == null then { } else { inherit sm; });
in
{
  "org.opencontainers.image.title" = name;
  "org.opencontainers.image.description" = project.description;
  "org.opencontainers.image.version" = project.version;
  "org.opencontainers.image.licenses" = project.license;
  "org.opencontainers.image.revision" = revision;
  "org.opencontainers.image.created" = created;
  "run.cog.version" = builtins.replaceStrings [ "cog " ] [ "" ] (versionOf servingLock [ "cog" ]);
  "run.cog.config" = builtins.toJSON {
    build.gpu = gpu;
    run = "run.py:Runner";
  };
  # NOTE: as it is; Nix versions differ in how they write numbers as JSON.
  "run.cog.openapi_schema" = builtins.readFile (../. + "/${kind}/.cog/openapi_schema.json");
}
// builtins.listToAttrs (
  map (key: {
    name = "cog-triton.${key}";
    value = ours.${key};
  }) (builtins.attrNames ours)
)
