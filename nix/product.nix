# One of our images: a kind of server, on an engine's environment, for a GPU architecture.
{
  runCommand,
  base,
  code,
  environment,
  image,
  layer,
  revision,
  lastModified,
}:

{
  name,
  # "runner" or "builder".
  kind,
  # Name of the lock of the engine's environment, in nix/locks.
  engine,
  # The GPU architecture to slim for, such as "86"; null: every one, or none.
  sm ? null,
  # Packages of nixpkgs that the engine needs besides wheels.
  libraries ? [ ],
  programs ? [ ],
  # Files of the environments that this image does not need.
  leaveOut ? [ ],
}:

let
  baseLayer = base { inherit libraries programs; };
  engineEnvironment = environment {
    stack = engine;
    inherit sm leaveOut;
  };
  servingEnvironment = environment { stack = "serving"; };

  # A link to an environment under /opt brings it along.
  environmentLayer =
    name: tree: below:
    layer {
      name = "${name} environment";
      root = runCommand "${name}-link" { inherit tree; } ''
        mkdir -p $out/opt
        ln -s $tree $out/opt/${name}
      '';
      inherit below;
    };
  engineLayer = environmentLayer "engine" engineEnvironment [ baseLayer ];
  servingLayer = environmentLayer "serving" servingEnvironment [
    baseLayer
    engineLayer
  ];
  below = [
    baseLayer
    engineLayer
    servingLayer
  ];
in
image {
  inherit name;
  created = "1970-01-01T00:00:01Z";
  layers = below ++ [ (code { inherit kind below; }) ];
  config = {
    Entrypoint = [
      "/bin/tini"
      "--"
    ];
    Cmd = [
      "python"
      "-m"
      "cog.server.http"
      "--host"
      "0.0.0.0"
    ];
    User = "1000:1000";
    WorkingDir = "/src";
    Env = [
      "PATH=/opt/serving/bin:/opt/engine/bin:/bin:/usr/bin"
      "LD_LIBRARY_PATH=/opt/base/lib:/usr/lib/x86_64-linux-gnu:/usr/lib64"
      "COG_PREDICT_TYPE_STUB=/src/${kind}/run.py:Runner"
      "COG_TRITON_ENGINE_PYTHON=/opt/engine/bin/python"
      "COG_MAX_CONCURRENCY=${if kind == "runner" then "64" else "1"}"
      "TOKIO_WORKER_THREADS=1"
      "PORT=5000"
      "PYTHONPATH=/src"
      "PYTHONSAFEPATH=1"
      "PYTHONUNBUFFERED=1"
      "PYTHONDONTWRITEBYTECODE=1"
      "HOME=/home/cog"
      "USER=cog"
      "LANG=C.UTF-8"
      "SSL_CERT_FILE=/etc/ssl/certs/ca-bundle.crt"
    ];
    ExposedPorts = builtins.listToAttrs (
      map (port: {
        name = "${toString port}/tcp";
        value = { };
      }) ([ 5000 ] ++ (if kind == "runner" then [ 8000 8001 8002 ] else [ ]))
    );
  };
}
