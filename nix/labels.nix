# What an image says of itself: the names of the OCI image specification, Cog's, and ours.
{ revision, created }:

{
  name,
  # "runner" or "builder".
  kind,
  # The one GPU architecture it is for, or null.
  sm,
  # The locks of its environments.
  engineLock,
  servingLock,
}:

let
  project = (builtins.fromTOML (builtins.readFile ../pyproject.toml)).project;
  schema = builtins.fromJSON (builtins.readFile (../. + "/${kind}/.cog/openapi_schema.json"));

  # "vllm 0.24.0": the version of the first of these packages that the lock has.
  versionOf =
    lock: packages:
    let
      found = builtins.filter (file: builtins.elem file.name packages) lock.files;
      file = builtins.head found;
    in
    "${file.name} ${file.version}";
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
  "run.cog.version" = (builtins.head (builtins.filter (file: file.name == "cog") servingLock.files)).version;
  "run.cog.config" = builtins.toJSON {
    build.gpu = sm != null;
    run = "run.py:Runner";
  };
  "run.cog.openapi_schema" = builtins.toJSON schema;
}
// builtins.listToAttrs (
  map (key: {
    name = "cog-triton.${key}";
    value = ours.${key};
  }) (builtins.attrNames ours)
)
