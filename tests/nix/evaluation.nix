# Tests that only evaluate: what holds of every image before anything is built.
{ images, wheel }:

let
  names = builtins.attrNames images;
  matches = pattern: text: builtins.match pattern text != null;
  isRunner = matches ".*runner.*";
  isPytorch = matches ".*-tensorrt-llm-pytorch-.*";
  ofImages =
    function:
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = function images.${name};
      }) names
    );
  constant = value: ofImages (_: value);
  environment =
    image: variable:
    let
      prefix = "${variable}=";
      length = builtins.stringLength prefix;
      found = builtins.filter (entry: builtins.substring 0 length entry == prefix) image.config.Env;
    in
    map (entry: builtins.substring length (-1) entry) found;

  # Locks. That of engine-tensorrt-llm-pytorch is made by users.
  allStacks = builtins.fromJSON (builtins.readFile ../../nix/locks/stacks.json);
  isLocked = builtins.pathExists ../../nix/locks/engine-tensorrt-llm-pytorch.json;
  stacks = if isLocked then allStacks else builtins.removeAttrs allStacks [ "engine-tensorrt-llm-pytorch" ];
  lockOf = stack: builtins.fromJSON (builtins.readFile (../../nix/locks + "/${stack}.json"));
  ofLocks = function: builtins.mapAttrs (stack: _: function (lockOf stack)) stacks;
  normalized =
    requirement:
    let
      name = builtins.head (builtins.match "([A-Za-z0-9._-]+).*" requirement);
      lower = builtins.replaceStrings upperCase lowerCase name;
    in
    builtins.replaceStrings [ "_" "." ] [ "-" "-" ] lower;
  letters = text: builtins.filter (letter: letter != "" && letter != [ ]) (builtins.split "" text);
  upperCase = letters "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  lowerCase = letters "abcdefghijklmnopqrstuvwxyz";
  none = ofLocks (_: [ ]);
  filterFiles = predicate: ofLocks (lock: builtins.filter predicate lock.files);
  # PyPI's path of a wheel without a build number: that of its Python tag, as in packages/py3/x/xyz.
  legacyPath =
    file:
    let
      parts = builtins.filter builtins.isString (builtins.split "-" file);
      part = builtins.elemAt parts;
    in
    "${part (builtins.length parts - 3)}/${builtins.substring 0 1 file}/${part 0}/${file}";
in
{
  the-documented-images-are-there = {
    expr = builtins.filter (name: !isPytorch name) names;
    expected = [
      "cog-triton-builder"
      "cog-triton-builder-cpu"
      "cog-triton-runner-80"
      "cog-triton-runner-86"
      "cog-triton-runner-89"
      "cog-triton-runner-90"
      "cog-triton-runner-cpu"
      "cog-triton-runner-vllm-100"
      "cog-triton-runner-vllm-103"
      "cog-triton-runner-vllm-120"
      "cog-triton-runner-vllm-80"
      "cog-triton-runner-vllm-86"
      "cog-triton-runner-vllm-89"
      "cog-triton-runner-vllm-90"
    ];
  };
  images-of-the-pytorch-backend-are-there-once-its-lock-is = {
    expr = map (name: [
      name
      images.${name}.config.Labels."cog-triton.python"
    ]) (builtins.filter isPytorch names);
    expected = map (sm: [
      "cog-triton-runner-tensorrt-llm-pytorch-${sm}"
      "3.11, engine 3.10"
    ]) (if isLocked then [ "100" "103" "120" "80" "89" "90" ] else [ ]);
  };
  every-image-evaluates-to-a-derivation-of-its-name = {
    expr = ofImages (image: matches "/nix/store/.*-${image.name}\\.drv" image.drvPath);
    expected = constant true;
  };
  layers-are-ordered-by-rate-of-change = {
    expr = ofImages (image: map (layer: layer.name) image.layers);
    expected = builtins.listToAttrs (
      map (name: {
        inherit name;
        value = [
          "layer-base"
          "layer-engine-environment"
          "layer-serving-environment"
          (if isRunner name then "layer-runner-code" else "layer-builder-code")
        ];
      }) names
    );
  };
  init-starts-cogs-server = {
    expr = ofImages (image: image.config.Entrypoint ++ image.config.Cmd);
    expected = builtins.listToAttrs (
      map (name: {
        inherit name;
        value = [
          "/bin/tini"
          "--"
          "python"
          "-m"
          (if isRunner name then "runner.cog_server" else "builder.cog_server")
          "--host"
          "0.0.0.0"
        ];
      }) names
    );
  };
  nobody-runs-as-root = {
    expr = ofImages (image: image.config.User);
    expected = constant "1000:1000";
  };
  runners-expose-cog-triton-and-openai = {
    expr = builtins.attrNames images.cog-triton-runner-86.config.ExposedPorts;
    expected = [
      "5000/tcp"
      "8000/tcp"
      "8001/tcp"
      "8002/tcp"
      "9000/tcp"
    ];
  };
  builders-expose-cog = {
    expr = builtins.attrNames images.cog-triton-builder.config.ExposedPorts;
    expected = [ "5000/tcp" ];
  };
  the-server-finds-its-runner-and-the-engines-python = {
    expr = ofImages (
      image:
      environment image "COG_PREDICT_TYPE_STUB" ++ environment image "COG_TRITON_ENGINE_PYTHON"
    );
    expected = builtins.listToAttrs (
      map (name: {
        inherit name;
        value = [
          "/src/${if isRunner name then "runner" else "builder"}/run.py:Runner"
          "/opt/engine/bin/python"
        ];
      }) names
    );
  };
  the-servers-python-is-first = {
    expr = ofImages (image: map (path: builtins.substring 0 17 path) (environment image "PATH"));
    expected = constant [ "/opt/serving/bin:" ];
  };
  the-driver-is-looked-for-last = {
    expr = ofImages (
      image:
      map (matches "/opt/base/lib:(.*:)?/usr/lib/x86_64-linux-gnu:/usr/lib64:.*:/usr/local/nvidia/lib64") (
        environment image "LD_LIBRARY_PATH"
      )
    );
    expected = constant [ true ];
  };
  only-gpu-images-ask-for-a-gpu = {
    expr = builtins.filter (name: environment images.${name} "NVIDIA_VISIBLE_DEVICES" == [ ]) names;
    expected = [
      "cog-triton-builder-cpu"
      "cog-triton-runner-cpu"
    ];
  };
  nothing-in-an-image-s-settings-names-the-store = {
    expr = ofImages (image: matches ".*/nix/store/.*" (builtins.toJSON image.config));
    expected = constant false;
  };
  slimmed-images-say-for-which-architecture-and-know-their-name = {
    expr = ofImages (image: [
      (image.config.Labels."cog-triton.sm" or null)
      (environment image "COG_TRITON_IMAGE")
    ]);
    expected = builtins.listToAttrs (
      map (name: {
        inherit name;
        value =
          let
            sm = builtins.match "cog-triton-runner-((vllm|tensorrt-llm-pytorch)-)?([0-9]+)" name;
          in
          if sm == null then
            [
              null
              [ ]
            ]
          else
            [
              (builtins.elemAt sm 2)
              [ name ]
            ];
      }) names
    );
  };
  labels-name-kind-and-engine = {
    expr = ofImages (
      image:
      map (name: image.config.Labels.${name}) [
        "cog-triton.kind"
        "cog-triton.engine"
        "org.opencontainers.image.title"
      ]
    );
    expected = builtins.listToAttrs (
      map (name: {
        inherit name;
        value = [
          (if isRunner name then "runner" else "builder")
          (
            if matches ".*-vllm-.*" name then
              "vllm 0.33.0"
            else if isPytorch name then
              "tensorrt-llm 1.2.1"
            else if matches ".*-cpu" name then
              "transformers 5.24.0"
            else
              "tensorrt-llm 0.16.0"
          )
          name
        ];
      }) names
    );
  };
  creation-is-a-time = {
    expr = ofImages (
      image:
      matches "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
        image.config.Labels."org.opencontainers.image.created"
    );
    expected = constant true;
  };

  every-lock-is-of-its-stack = {
    expr = ofLocks (lock: "${lock.stack} ${lock.python}");
    expected = builtins.mapAttrs (stack: spec: "${stack} ${spec.python}") stacks;
  };
  every-hash-is-well-formed = {
    expr = filterFiles (
      file: !matches "[0-9a-f]{64}" file.sha256 || !matches "[0-9a-f]{64}" (file.blake2b or file.sha256)
    );
    expected = none;
  };
  every-file-of-pypi-is-fetched-by-its-digest-then-by-its-name = {
    expr = filterFiles (
      file:
      let
        digest = builtins.concatStringsSep "/" (builtins.match "(..)(..)(.*)" file.blake2b);
        urls = map (builtins.match "https://[^/]*/packages/(.*)") (wheel file).urls;
      in
      !(file ? source)
      && urls != [
        [ "${digest}/${file.file}" ]
        [ (legacyPath file.file) ]
      ]
    );
    expected = none;
  };
  what-is-on-nvidias-and-pytorchs-pages-is-fetched-there = {
    expr = map (file: (wheel file).urls) (
      allStacks.engine-tensorrt-llm.pinned
      ++ allStacks.engine-tensorrt-llm-pytorch.pinned
      ++ map (url: {
        version = "";
        file = builtins.replaceStrings [ "%2B" ] [ "+" ] (baseNameOf url);
        sha256 = "";
        source = "pytorch-cu130";
      }) allStacks.engine-tensorrt-llm-pytorch.urls
    );
    expected =
      let
        wheels = "https://pypi.nvidia.com/tensorrt-llm";
        archives = "https://developer.nvidia.com/downloads/compute/machine-learning/tensorrt";
      in
      [
        [ "${wheels}/tensorrt_llm-0.16.0-cp310-cp310-linux_x86_64.whl" ]
        [ "${archives}/10.7.0/tars/TensorRT-10.7.0.23.Linux.x86_64-gnu.cuda-12.6.tar.gz" ]
        [ "${wheels}/tensorrt_llm-1.2.1-cp310-cp310-linux_x86_64.whl" ]
        [ "${archives}/10.14.1/tars/TensorRT-10.14.1.48.Linux.x86_64-gnu.cuda-13.0.tar.gz" ]
      ]
      ++ map (url: [ url ]) allStacks.engine-tensorrt-llm-pytorch.urls;
  };
  no-lock-names-a-host = {
    expr = filterFiles (file: matches ".*://.*" (builtins.toJSON file));
    expected = none;
  };
  every-requirement-of-every-wheel-is-in-its-lock = {
    expr = ofLocks (
      lock:
      let
        have = builtins.listToAttrs (
          map (file: {
            inherit (file) name;
            value = true;
          }) lock.files
        );
        wanted = builtins.concatMap (file: file.requires or [ ]) lock.files;
      in
      builtins.filter (requirement: !(have // lock.left_out) ? ${normalized requirement}) wanted
    );
    expected = none;
  };
  one-version-of-everything = {
    expr = ofLocks (
      lock:
      let
        byName = builtins.groupBy (file: file.name) lock.files;
      in
      builtins.filter (name: builtins.length byName.${name} != 1) (builtins.attrNames byName)
    );
    expected = none;
  };
}
