# One of our images: a kind of server, on an engine's environment, for a GPU architecture.
{
  runCommand,
  base,
  code,
  environment,
  glibc,
  image,
  labels,
  layer,
  librariesFound,
  sbom,
  created,
}:

{
  # Of the image.
  name,
  # "runner" or "builder".
  kind,
  # Name of the lock of the engine's environment, in nix/locks.
  engine,
  # The GPU architecture to slim for, such as "86"; null: all that there are.
  sm ? null,
  # Whether it is for NVIDIA GPUs.
  gpu ? false,
  # Packages of nixpkgs whose libraries, and whose programs, the engine needs besides wheels.
  libraries ? [ ],
  programs ? [ ],
  # Folders of libraries in the engine's environment that libraries elsewhere look for.
  libraryFolders ? [ ],
  # Files of the engine's environment that this image does not need.
  leaveOut ? [ ],
  # Patterns of libraries that something in it names and that need not be there.
  absent ? [ ],
  # Names in its site-packages that other names shall have, too.
  aliases ? { },
  # Variables of the engine: { NAME = "value"; }.
  variables ? { },
}:

let
  engineEnvironment = environment {
    stack = engine;
    inherit sm leaveOut aliases;
  };
  servingEnvironment = environment {
    stack = "serving";
    leaveOut = builtins.concatLists (
      builtins.attrValues (builtins.fromJSON (builtins.readFile ./left-out.json)).serving
    );
  };

  # A link to an environment in /opt brings it along.
  environmentLayer =
    { link, tree, below }:
    layer {
      name = "${link} environment";
      root = runCommand "${link}-link" { inherit tree link; } ''
        mkdir -p $out/opt
        ln -s "$tree" "$out/opt/$link"
      '';
      inherit below;
    };

  baseLayer = base { inherit libraries programs; };
  engineLayer = environmentLayer {
    link = "engine";
    tree = engineEnvironment;
    below = [ baseLayer ];
  };
  servingLayer = environmentLayer {
    link = "serving";
    tree = servingEnvironment;
    below = [
      baseLayer
      engineLayer
    ];
  };
  below = [
    baseLayer
    engineLayer
    servingLayer
  ];

  libraryPath = builtins.concatStringsSep ":" (
    [ "/opt/base/lib" ]
    ++ map (folder: "/opt/engine/${folder}") libraryFolders
    # Where the driver's libraries may be mounted. NOTE: with CDI they have the paths that they have on the host, and
    # nixpkgs' loader does not read the cache that NVIDIA's container toolkit then writes to /etc/ld.so.cache.
    ++ [
      "/usr/lib/x86_64-linux-gnu"
      "/usr/lib64"
      # Debian's driver; Arch's; WSL's.
      "/usr/lib/x86_64-linux-gnu/nvidia/current"
      "/usr/lib"
      "/usr/lib/wsl/lib"
      "/usr/local/nvidia/lib64"
    ]
  );
  environmentVariables = {
    PATH = "/opt/serving/bin:/opt/engine/bin:/bin:/usr/bin:/usr/local/nvidia/bin";
    LD_LIBRARY_PATH = libraryPath;
    COG_PREDICT_TYPE_STUB = "/src/${kind}/run.py:Runner";
    COG_TRITON_ENGINE_PYTHON = "/opt/engine/bin/python";
    COG_MAX_CONCURRENCY = if kind == "runner" then "64" else "1";
    # NOTE: with more, two of Cog's threads meet at its slots' locks and one refuses a free slot.
    TOKIO_WORKER_THREADS = "1";
    PORT = "5000";
    PYTHONPATH = "/src";
    PYTHONSAFEPATH = "1";
    PYTHONUNBUFFERED = "1";
    HOME = "/home/cog";
    USER = "cog";
    LANG = "C.UTF-8";
    SSL_CERT_FILE = "/etc/ssl/certs/ca-bundle.crt";
  }
  # Where `docker container cp` looks for it.
  // (if kind == "builder" then { ENGINE_TAR = "/src/engine.tar"; } else { })
  // (
    if gpu then
      {
        NVIDIA_VISIBLE_DEVICES = "all";
        NVIDIA_DRIVER_CAPABILITIES = "compute,utility";
      }
    else
      { }
  )
  # A runner on a GPU of another architecture says so.
  // (if sm == null then { } else { COG_TRITON_IMAGE = name; })
  // variables;

  layers = below ++ [ (code { inherit kind below; }) ];
  # In nanoseconds, as Docker counts.
  second = 1000000000;
  ports = [ "5000/tcp" ] ++ (if kind == "runner" then [ "8000/tcp" "8001/tcp" "8002/tcp" "9000/tcp" ] else [ ]);
in
image {
  inherit name created;
  requires = [
    (librariesFound {
      inherit name;
      folders = [
        baseLayer.root
        "${glibc}/lib"
        engineEnvironment
        servingEnvironment
      ];
      # The runner tells Triton's stub where its Python's library is.
      absent = [ "libpython3.*" ] ++ absent;
    })
  ];
  # From the bottom to the top: what changes least comes first.
  inherit layers;
  contents = sbom {
    inherit name layers;
    environments = [
      engineEnvironment
      servingEnvironment
    ];
  };
  config = {
    # Passes signals on, and takes in what others leave behind.
    Entrypoint = [
      "/bin/tini"
      "--"
    ];
    Cmd = [
      "python"
      "-m"
      "${kind}.cog_server"
      "--host"
      "0.0.0.0"
    ];
    User = "1000:1000";
    WorkingDir = "/src";
    Env = map (variable: "${variable}=${environmentVariables.${variable}}") (
      builtins.attrNames environmentVariables
    );
    ExposedPorts = builtins.listToAttrs (
      map (port: {
        name = port;
        value = { };
      }) ports
    );
    Labels = labels {
      inherit name kind gpu sm;
      engineLock = engineEnvironment.lock;
      servingLock = servingEnvironment.lock;
    };
  }
  // (
    if kind == "runner" then
      {
        # Docker's; the OCI specification has none. A start may download and compile.
        Healthcheck = {
          Test = [
            "CMD"
            "python"
            "-m"
            "runner.probe"
            "ready"
          ];
          Interval = 30 * second;
          Timeout = 5 * second;
          StartPeriod = 1800 * second;
        };
      }
    else
      { }
  );
}
